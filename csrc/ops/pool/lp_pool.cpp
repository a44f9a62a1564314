// LpPool, GlobalLpPool and MaxUnpool.
//
// The p-norm of a window is rare in training: its gradient runs the forward kernel again under autograd.
#include "base/status.h"
#include "ops/pool/window.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

void infer_lp_pool(InferContext& c) {
  const PoolAttributes a(c.node());
  const Shape* x = c.shape(0);
  if (!x) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  if (x->size() < 3 || !a.fits(x->size() - 2))
    c.error(str("X ", shape_text(*x), " does not fit the attributes: kernel_shape has ", a.rank(), " numbers"));
  Shape out{(*x)[0], (*x)[1]};
  for (size_t i = 0; i < a.rank(); ++i) {
    const Dim& size = (*x)[i + 2];
    if (a.strides[i] <= 0 || a.dilations[i] <= 0 || a.kernel[i] <= 0)
      c.error("strides, dilations and kernel_shape should be positive");
    if (!size.is_known() || a.same() || a.ceil) {
      // Only the plain case has a formula that needs no case distinction.
      const bool plain = !a.same() && !a.ceil;
      const Dim span = size + Dim(a.pads[i] + a.pads[i + a.rank()] - a.extent(i));
      out.push_back(plain      ? Dim::floor_div(span, Dim(a.strides[i])) + Dim(1)
                    : a.same() ? Dim::floor_div(size + Dim(a.strides[i] - 1), Dim(a.strides[i]))
                               : c.fresh_shape(i + 1)[i]);
      continue;
    }
    const int64_t span = size.value() + a.pads[i] + a.pads[i + a.rank()] - a.extent(i);
    if (span < 0) c.error(str("a window of ", a.extent(i), " does not fit axis ", i + 2, " of ", shape_text(*x)));
    out.push_back(Dim(span / a.strides[i] + 1));
  }
  c.out(0, c.dtype(0), std::move(out));
}

}  // namespace

ORTMODULE_OP("", LpPool, 2)
    .input("X")
    .output("Y")
    .attr("auto_pad", AttrKind::kString)
    .attr("ceil_mode", AttrKind::kInt)
    .attr("dilations", AttrKind::kInts)
    .required_attr("kernel_shape", AttrKind::kInts)
    .attr("p", AttrKind::kInt)
    .attr("pads", AttrKind::kInts)
    .attr("strides", AttrKind::kInts)
    .infer(infer_lp_pool)
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::LpPoolGrad"); });
ORTMODULE_OP("ai.ortmodule", LpPoolGrad, 1).apply(rerun_record);

ORTMODULE_OP("", GlobalLpPool, 2)
    .input("X")
    .output("Y")
    .attr("p", AttrKind::kInt)
    .traits(kReduction)
    .infer([](InferContext& c) {
      std::optional<Shape> out;
      if (const Shape* x = c.shape(0)) {
        if (x->size() < 3) c.error(str("X should be [N, C, d...], got ", shape_text(*x)));
        out = Shape(x->size(), Dim(1));
        (*out)[0] = (*x)[0];
        (*out)[1] = (*x)[1];
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::GlobalLpPoolGrad"); });
ORTMODULE_OP("ai.ortmodule", GlobalLpPoolGrad, 1).apply(rerun_record);

// I holds flat positions in an output of the sizes that the pooling had; a larger output_shape adds zeros at the ends.
ORTMODULE_OP("", MaxUnpool, 9)
    .input("X")
    .input("I")
    .host_input("output_shape", Presence::kOptional)
    .output("output")
    .required_attr("kernel_shape", AttrKind::kInts)
    .attr("pads", AttrKind::kInts)
    .attr("strides", AttrKind::kInts)
    .no_grad({"I"})
    .infer([](InferContext& c) {
      const PoolAttributes a(c.node());
      const Shape* x = c.shape(0);
      std::optional<Shape> out;
      if (x) {
        if (x->size() < 3 || !a.fits(x->size() - 2))
          c.error(str("X ", shape_text(*x), " does not fit the attributes: kernel_shape has ", a.rank(), " numbers"));
        out = Shape{(*x)[0], (*x)[1]};
        const Shape unknown = c.fresh_shape(a.rank());
        for (size_t i = 0; i < a.rank(); ++i)
          out->push_back(c.has(2) ? unknown[i]
                                  : ((*x)[i + 2] - Dim(1)) * Dim(a.strides[i]) +
                                        Dim(a.kernel[i] - a.pads[i] - a.pads[i + a.rank()]));
      }
      if (c.has(2))
        if (const auto dims = c.dims_value(2)) out = *dims;
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::MaxUnpoolGrad", {c.GO(0), c.I(1)}, c.node().attributes()));
    });

ORTMODULE_OP("ai.ortmodule", MaxUnpoolGrad, 1)
    .input("dY")
    .input("I")
    .output("dX")
    .required_attr("kernel_shape", AttrKind::kInts)
    .attr("pads", AttrKind::kInts)
    .attr("strides", AttrKind::kInts)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.shape(1) ? std::optional<Shape>(*c.shape(1)) : std::nullopt); })
    .not_differentiable();

}  // namespace ortmodule

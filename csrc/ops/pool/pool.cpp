// MaxPool, AveragePool and their global forms.
//
// Backward of MaxPool keeps the position of each maximum within its plane, as PyTorch numbers it, and the input's
// sizes; the input itself is not kept.
#include "ops/pool/window.h"

#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

std::optional<Shape> pooled_shape(InferContext& c) {
  const PoolAttributes a(c.node());
  const Shape* x = c.shape(0);
  if (!x) return std::nullopt;
  if (x->size() < 3 || x->size() > 5 || !a.fits(x->size() - 2))
    c.error(str("X ", shape_text(*x), " does not fit the attributes: lists of ", a.rank(), " positive numbers"));
  Shape out{(*x)[0], (*x)[1]};
  for (size_t i = 0; i < a.rank(); ++i) {
    const Dim &size = (*x)[i + 2], stride(a.strides[i]);
    if (a.same()) {
      out.push_back(Dim::floor_div(size + Dim(a.strides[i] - 1), stride));
      continue;
    }
    const Dim span = size + Dim(a.pads[i] + a.pads[i + a.rank()] - a.extent(i));
    Dim count = Dim::floor_div(a.ceil ? span + Dim(a.strides[i] - 1) : span, stride) + Dim(1);
    // A window must start inside the input or its left pad.
    if (a.ceil && size.is_known() && (count.value() - 1) * a.strides[i] >= size.value() + a.pads[i])
      count = count - Dim(1);
    else if (a.ceil && !size.is_known() && a.strides[i] > 1)
      count = Dim::min(count, Dim::floor_div(size + Dim(a.pads[i] - 1), stride) + Dim(1));
    out.push_back(count);
  }
  return out;
}

void infer_max_pool(InferContext& c) {
  const auto out = pooled_shape(c);
  c.out(0, c.dtype(0), out);
  c.out(1, DType::kInt64, out);
  c.out(2, DType::kInt64, out);
}

void infer_global(InferContext& c) {
  const Shape* x = c.shape(0);
  std::optional<Shape> out;
  if (x) {
    if (x->size() < 3) c.error(str("X should be [N, C, d...], got ", shape_text(*x)));
    out = Shape(x->size(), Dim(1));
    (*out)[0] = (*x)[0];
    (*out)[1] = (*x)[1];
  }
  c.out(0, c.dtype(0), std::move(out));
}

Attributes attributes_of(const Node& node) { return node.attributes(); }

void max_pool_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::MaxPoolGrad", {c.GO(0), c.saved("plane_indices"), c.sizes_of(c.I(0))},
                 attributes_of(c.node())));
}

void average_pool_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::AveragePoolGrad", {c.GO(0), c.sizes_of(c.I(0))}, attributes_of(c.node())));
}

void pool_attributes(OpRecord& op) {
  op.attr("auto_pad", AttrKind::kString)
      .attr("ceil_mode", AttrKind::kInt)
      .attr("dilations", AttrKind::kInts)
      .required_attr("kernel_shape", AttrKind::kInts)
      .attr("pads", AttrKind::kInts)
      .attr("strides", AttrKind::kInts);
}

}  // namespace

// Indices are flat over the whole of X: planes in row-major (storage_order 0) or column-major order.
ORTMODULE_OP("", MaxPool, 1)
    .input("X")
    .output("Y")
    .output("Indices", Presence::kOptional)
    .saved("plane_indices")
    .apply(pool_attributes)
    .attr("storage_order", AttrKind::kInt)
    .infer(infer_max_pool)
    .grad({"X"}, max_pool_gradient);

ORTMODULE_OP("ai.ortmodule", MaxPoolGrad, 1)
    .input("dY")
    .input("plane_indices")
    .host_input("x_sizes")
    .output("dX")
    .apply(pool_attributes)
    .attr("storage_order", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(2)); })
    .not_differentiable();

ORTMODULE_OP("", AveragePool, 1)
    .input("X")
    .output("Y")
    .apply(pool_attributes)
    .attr("count_include_pad", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), pooled_shape(c)); })
    .grad({"X"}, average_pool_gradient);

ORTMODULE_OP("ai.ortmodule", AveragePoolGrad, 1)
    .input("dY")
    .host_input("x_sizes")
    .output("dX")
    .apply(pool_attributes)
    .attr("count_include_pad", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(1)); })
    .not_differentiable();

// The gradient is dY over the number of elements, spread by a view.
ORTMODULE_OP("", GlobalAveragePool, 1)
    .input("X")
    .output("Y")
    .infer(infer_global)
    .traits(kReduction)
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::GlobalAveragePoolGrad", {c.GO(0), c.sizes_of(c.I(0))}));
    });

ORTMODULE_OP("ai.ortmodule", GlobalAveragePoolGrad, 1)
    .input("dY")
    .host_input("x_sizes")
    .output("dX")
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(1)); })
    .not_differentiable();

ORTMODULE_OP("", GlobalMaxPool, 1)
    .input("X")
    .output("Y")
    .infer(infer_global)
    .traits(kReduction)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::GlobalMaxPoolGrad", {c.GO(0), c.I(0), c.O(0)})); });

// Equal maxima share the gradient.
ORTMODULE_OP("ai.ortmodule", GlobalMaxPoolGrad, 1)
    .input("dY")
    .input("X")
    .input("Y")
    .output("dX")
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

}  // namespace ortmodule

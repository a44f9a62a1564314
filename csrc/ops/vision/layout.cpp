// Col2Im and CenterCropPad: images put together from columns, and cut or padded around their middle.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void window_attributes(OpRecord& r) {
  r.attr("dilations", AttrKind::kInts).attr("pads", AttrKind::kInts).attr("strides", AttrKind::kInts);
}

}  // namespace

// input [N, C * prod(block), L] -> [N, C, image...]; columns that overlap are added.
ORTMODULE_OP("", Col2Im, 18)
    .input("input")
    .host_input("image_shape")
    .host_input("block_shape")
    .output("output")
    .apply(window_attributes)
    .infer([](InferContext& c) {
      const Shape* x = c.shape_of_rank(0, 3);
      const auto image = c.dims_value(1);
      const auto block = c.ints_value(2);
      if (!image) {
        c.out(0, c.dtype(0), std::nullopt);
        return;
      }
      int64_t elements = 1;
      if (block)
        for (int64_t b : *block)
          if (b <= 0 || __builtin_mul_overflow(elements, b, &elements))
            c.error("block_shape should be positive, and its product a number of 64 bits");
      Shape out = c.fresh_shape(2);
      if (x) out[0] = (*x)[0];
      if (x && block) {
        if ((*x)[1].is_known() && (*x)[1].value() % elements != 0)
          c.error(str("axis 1 of input has ", (*x)[1].value(), " elements, no multiple of the block's ", elements));
        out[1] = Dim::floor_div((*x)[1], Dim(elements));
      }
      out.insert(out.end(), image->begin(), image->end());
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"input"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::Col2ImGrad", {c.GO(0), c.I(2)}, c.node().attributes()));
    });

// Im2Col: the columns of an image.
ORTMODULE_OP("ai.ortmodule", Col2ImGrad, 1)
    .input("dY")
    .host_input("block_shape")
    .output("dX")
    .apply(window_attributes)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.fresh_shape(3)); })
    .not_differentiable();

// `shape` gives the sizes of `axes` (of every axis when absent). The gradient is the same towards the sizes of X: what
// was cut comes back as zeros, what was padded is cut.
ORTMODULE_OP("", CenterCropPad, 18)
    .input("input_data")
    .host_input("shape")
    .output("output_data")
    .attr("axes", AttrKind::kInts)
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(1);
      if (!c.shape(0)) {
        c.out(0, c.dtype(0), std::nullopt);
        return;
      }
      Shape out = *c.shape(0);
      std::vector<int64_t> axes = c.node().get_ints("axes");
      if (axes.empty())
        for (size_t i = 0; i < out.size(); ++i) axes.push_back(static_cast<int64_t>(i));
      if (dims && dims->size() != axes.size()) c.error(str("expected ", axes.size(), " sizes, got ", dims->size()));
      const Shape unknown = c.fresh_shape(axes.size());
      for (size_t k = 0; k < axes.size(); ++k) out[c.axis(axes[k], out.size())] = dims ? (*dims)[k] : unknown[k];
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"input_data"}, [](GradContext& c) { c.GI(0, c.emit("CenterCropPad", {c.GO(0), c.sizes_of(c.I(0))})); });

}  // namespace ortmodule

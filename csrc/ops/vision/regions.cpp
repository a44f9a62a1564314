// Operators on regions of an image: RoiAlign, MaxRoiPool, NonMaxSuppression, DeformConv.
//
// Regions have no gradient: they are places, and PyTorch's detectors do not differentiate them either.
#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

void align_attributes(OpRecord& r) {
  r.attr("mode", AttrKind::kString)
      .attr("output_height", AttrKind::kInt)
      .attr("output_width", AttrKind::kInt)
      .attr("sampling_ratio", AttrKind::kInt)
      .attr("spatial_scale", AttrKind::kFloat);
}

void infer_pooled(InferContext& c, int64_t height, int64_t width) {
  const Shape *x = c.shape_of_rank(0, 4), *rois = c.shape_of_rank(1, 2);
  if (height <= 0 || width <= 0) c.error(str("an output of ", height, " x ", width));
  const Shape unknown = c.fresh_shape(2);
  c.out(0, c.dtype(0), Shape{rois ? (*rois)[0] : unknown[0], x ? (*x)[1] : unknown[1], Dim(height), Dim(width)});
}

void roi_align(OpRecord& r) {
  r.input("X")
      .input("rois")
      .input("batch_indices")
      .output("Y")
      .apply(align_attributes)
      .no_grad({"rois", "batch_indices"})
      .infer([](InferContext& c) { infer_pooled(c, c.attr_int("output_height", 1), c.attr_int("output_width", 1)); })
      .grad({"X"}, [](GradContext& c) {
        Attributes attributes = c.node().attributes();
        // Before opset 16 there was one way to place the samples.
        attributes.try_emplace("coordinate_transformation_mode",
                               std::string(c.node().record()->since() < 16 ? "output_half_pixel" : "half_pixel"));
        c.GI(0, c.emit("ai.ortmodule::RoiAlignGrad", {c.GO(0), c.I(0), c.I(1), c.I(2)}, attributes));
      });
}

}  // namespace

ORTMODULE_OP("", RoiAlign, 10).apply(roi_align);
ORTMODULE_OP("", RoiAlign, 16).apply(roi_align).attr("coordinate_transformation_mode", AttrKind::kString);

ORTMODULE_OP("ai.ortmodule", RoiAlignGrad, 1)
    .input("dY")
    .input("X")
    .input("rois")
    .input("batch_indices")
    .output("dX")
    .apply(align_attributes)
    .attr("coordinate_transformation_mode", AttrKind::kString)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

// rois [R, 5]: image, x1, y1, x2, y2, rounded to whole elements.
ORTMODULE_OP("", MaxRoiPool, 1)
    .input("X")
    .input("rois")
    .output("Y")
    .required_attr("pooled_shape", AttrKind::kInts)
    .attr("spatial_scale", AttrKind::kFloat)
    .no_grad({"rois"})
    .infer([](InferContext& c) {
      const std::vector<int64_t> shape = c.node().get_ints("pooled_shape");
      if (shape.size() != 2) c.error(str("pooled_shape should be of 2 numbers, got ", shape.size()));
      infer_pooled(c, shape[0], shape[1]);
    })
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::MaxRoiPoolGrad", {c.GO(0), c.I(0), c.I(1)}, c.node().attributes()));
    });

ORTMODULE_OP("ai.ortmodule", MaxRoiPoolGrad, 1)
    .input("dY")
    .input("X")
    .input("rois")
    .output("dX")
    .required_attr("pooled_shape", AttrKind::kInts)
    .attr("spatial_scale", AttrKind::kFloat)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

// selected_indices [n, 3]: image, class, box.
ORTMODULE_OP("", NonMaxSuppression, 10)
    .input("boxes")
    .input("scores")
    .host_input("max_output_boxes_per_class", Presence::kOptional)
    .host_input("iou_threshold", Presence::kOptional)
    .host_input("score_threshold", Presence::kOptional)
    .output("selected_indices")
    .attr("center_point_box", AttrKind::kInt)
    .infer([](InferContext& c) {
      c.shape_of_rank(0, 3);
      c.shape_of_rank(1, 3);
      c.out(0, DType::kInt64, Shape{c.fresh_dim(), Dim(3)});
    })
    .not_differentiable();

namespace {

void deform_attributes(OpRecord& r) {
  r.attr("dilations", AttrKind::kInts)
      .attr("group", AttrKind::kInt)
      .attr("kernel_shape", AttrKind::kInts)
      .attr("offset_group", AttrKind::kInt)
      .attr("pads", AttrKind::kInts)
      .attr("strides", AttrKind::kInts);
}

}  // namespace

// The sizes of Y are those of the offsets.
ORTMODULE_OP("", DeformConv, 19)
    .input("X")
    .input("W")
    .input("offset")
    .optional_input("B")
    .optional_input("mask")
    .output("Y")
    .apply(deform_attributes)
    .infer([](InferContext& c) {
      const Shape *x = c.shape(0), *w = c.shape(1), *offset = c.shape(2);
      if (!x || !w || !offset) {
        c.out(0, c.dtype(0), std::nullopt);
        return;
      }
      if (x->size() != w->size() || x->size() != offset->size() || x->size() < 3)
        c.error(str("X, W and offset should have one rank of at least 3, got ", shape_text(*x), ", ", shape_text(*w),
                    " and ", shape_text(*offset)));
      Shape out = *offset;
      out[0] = (*x)[0];
      out[1] = (*w)[0];
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"X", "W", "offset", "B", "mask"}, [](GradContext& c) {
      std::vector<bool> wanted;
      for (size_t i = 0; i < 5; ++i) wanted.push_back(c.needs(i));
      const auto g = c.emit_some("ai.ortmodule::DeformConvGrad", {c.GO(0), c.I(0), c.I(1), c.I(2), c.I(3), c.I(4)},
                                 wanted, c.node().attributes());
      for (size_t i = 0; i < 5; ++i)
        if (wanted[i]) c.GI(i, g[i]);
    });

ORTMODULE_OP("ai.ortmodule", DeformConvGrad, 1)
    .input("dY")
    .input("X")
    .input("W")
    .input("offset")
    .optional_input("B")
    .optional_input("mask")
    .output("dX", Presence::kOptional)
    .output("dW", Presence::kOptional)
    .output("doffset", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .output("dmask", Presence::kOptional)
    .apply(deform_attributes)
    .infer([](InferContext& c) {
      for (size_t i = 0; i < 5; ++i)
        if (c.wants(i)) c.same_as(i, i + 1);
    })
    .not_differentiable();

}  // namespace ortmodule

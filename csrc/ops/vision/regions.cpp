// Operators on regions of an image: RoiAlign, MaxRoiPool, NonMaxSuppression, DeformConv.
//
// Regions have no gradient: they are places, and PyTorch's detectors do not differentiate them either.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_pooled(InferContext& c, int64_t height, int64_t width) {
  const Shape *x = c.shape_of_rank(0, 4), *rois = c.shape_of_rank(1, 2);
  constexpr int64_t kMost = 1 << 12;
  if (height <= 0 || width <= 0 || height > kMost || width > kMost)
    c.error(str("an output of ", height, " x ", width, " per region; 1 to ", kMost, " are supported"));
  if (c.attr_int("sampling_ratio", 0) < 0 || c.attr_int("sampling_ratio", 0) > kMost)
    c.error(str("a sampling_ratio of ", c.attr_int("sampling_ratio", 0)));
  const Shape unknown = c.fresh_shape(2);
  c.out(0, c.dtype(0), Shape{rois ? (*rois)[0] : unknown[0], x ? (*x)[1] : unknown[1], Dim(height), Dim(width)});
}

}  // namespace

ORTMODULE_OP("", RoiAlign, 16)
    .input("X")
    .input("rois")
    .input("batch_indices")
    .output("Y")
    .attr("coordinate_transformation_mode", AttrKind::kString)
    .attr("mode", AttrKind::kString)
    .attr("output_height", AttrKind::kInt)
    .attr("output_width", AttrKind::kInt)
    .attr("sampling_ratio", AttrKind::kInt)
    .attr("spatial_scale", AttrKind::kFloat)
    .no_grad({"rois", "batch_indices"})
    .infer([](InferContext& c) { infer_pooled(c, c.attr_int("output_height", 1), c.attr_int("output_width", 1)); })
    .older(10, 15,
           [](UpgradeContext& c) {
             // There was one way to place the samples.
             c.set("coordinate_transformation_mode", std::string("output_half_pixel"));
             c.rewrite(c.node().inputs());
           })
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::RoiAlignGrad"); });
ORTMODULE_OP("ai.ortmodule", RoiAlignGrad, 1).apply(rerun_record);

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
    .grad({"X"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::MaxRoiPoolGrad"); });
ORTMODULE_OP("ai.ortmodule", MaxRoiPoolGrad, 1).apply(rerun_record);

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

// The sizes of Y are those of the offsets.
ORTMODULE_OP("", DeformConv, 19)
    .input("X")
    .input("W")
    .input("offset")
    .optional_input("B")
    .optional_input("mask")
    .output("Y")
    .attr("dilations", AttrKind::kInts)
    .attr("group", AttrKind::kInt)
    .attr("kernel_shape", AttrKind::kInts)
    .attr("offset_group", AttrKind::kInt)
    .attr("pads", AttrKind::kInts)
    .attr("strides", AttrKind::kInts)
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
    .grad({"X", "W", "offset", "B", "mask"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::DeformConvGrad"); });
ORTMODULE_OP("ai.ortmodule", DeformConvGrad, 1).apply(rerun_record);

}  // namespace ortmodule

// Resize, and Upsample as it was called once: interpolation to other sizes, axis by axis (resize_plan.h).
//
// The gradient is the transposed interpolation and looks at nothing but sizes. roi, scales and sizes have none.
#include <cmath>

#include "base/status.h"
#include "ops/vision/resize_plan.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

// The size of an axis under a scale, also where the axis is a symbol and the scale a power of two.
Dim scaled(const Dim& dim, double scale, const Dim& unknown) {
  if (dim.is_known()) return Dim(resized(dim.value(), scale));
  if (scale == 1) return dim;
  int exponent = 0;
  if (std::frexp(scale, &exponent) == 0.5 && std::abs(exponent) < 20) {
    if (exponent >= 1) return dim * Dim(int64_t{1} << (exponent - 1));
    return Dim::floor_div(dim, Dim(int64_t{1} << (1 - exponent)));
  }
  return unknown;
}

const TensorData* filled(const TensorData* data) { return data && data->elements() > 0 ? data : nullptr; }

void infer_scaled(InferContext& c, const ResizeAttributes& a, const std::vector<double>& scales) {
  Shape out = *c.shape(0);
  const Shape unknown = c.fresh_shape(out.size());
  const std::vector<size_t> axes = a.axes_of(out.size());
  if (axes.size() != scales.size()) c.error(str("expected ", axes.size(), " scales, got ", scales.size()));
  for (size_t k = 0; k < axes.size(); ++k) {
    if (!(scales[k] > 0 && scales[k] < 1e9)) c.error(str("a scale of ", scales[k]));
    out[axes[k]] = scaled(out[axes[k]], scales[k], unknown[axes[k]]);
  }
  c.out(0, c.dtype(0), std::move(out));
}

void infer_unknown(InferContext& c, const ResizeAttributes& a) {
  std::optional<Shape> out;
  if (c.shape(0)) {
    out = *c.shape(0);
    const Shape unknown = c.fresh_shape(out->size());
    for (size_t axis : a.axes_of(out->size())) (*out)[axis] = unknown[axis];
  }
  c.out(0, c.dtype(0), std::move(out));
}

void infer_resize(InferContext& c) {
  const ResizeAttributes a(c.node());
  if (!c.has(2) && !c.has(3)) c.error("one of scales and sizes is needed");
  if (!c.shape(0)) return infer_unknown(c, a);
  if (const TensorData* scales = filled(c.constant(2))) return infer_scaled(c, a, scales->to_doubles());
  const auto sizes = c.has(3) ? c.dims_value(3) : std::nullopt;
  if (!sizes || sizes->empty()) return infer_unknown(c, a);
  Shape out = *c.shape(0);
  const std::vector<size_t> axes = a.axes_of(out.size());
  if (axes.size() != sizes->size()) c.error(str("expected ", axes.size(), " sizes, got ", sizes->size()));
  bool known = true;
  for (size_t k = 0; k < axes.size(); ++k) known = known && out[axes[k]].is_known() && (*sizes)[k].is_known();
  if (a.policy != AspectPolicy::kStretch) {
    if (!known) return infer_unknown(c, a);
    ResizeAttributes plain = a;
    plain.coordinates = Coordinates::kHalfPixel;  // a size does not depend on the region
    std::vector<int64_t> x;
    for (const Dim& d : out) x.push_back(d.is_known() ? d.value() : 1);
    ResizeRequest request;
    for (const Dim& d : *sizes) request.sizes.push_back(d.value());
    for (const ResizeAxis& r : resize_axes(plain, x, request)) out[r.axis] = Dim(r.out);
  } else {
    for (size_t k = 0; k < axes.size(); ++k) out[axes[k]] = (*sizes)[k];
  }
  c.out(0, c.dtype(0), std::move(out));
}

// Resize of opset 10 and Upsample: X and scales, which opset 7 has as an attribute.
void upgrade_by_scales(UpgradeContext& c) {
  NodeArg* scales = c.I(1);
  if (c.node().find_attribute("scales")) scales = c.floats(c.take_floats("scales").value_or(std::vector<double>()));
  c.set("coordinate_transformation_mode", std::string("asymmetric"));
  c.set("nearest_mode", std::string("floor"));
  if (c.node().get_string("mode", "nearest") == "bilinear") c.set("mode", std::string("linear"));
  c.rewrite("Resize", {c.I(0), nullptr, scales}, c.attributes());
}

void resize_attributes(OpRecord& r) {
  r.attr("antialias", AttrKind::kInt)
      .attr("axes", AttrKind::kInts)
      .attr("coordinate_transformation_mode", AttrKind::kString)
      .attr("cubic_coeff_a", AttrKind::kFloat)
      .attr("exclude_outside", AttrKind::kInt)
      .attr("extrapolation_value", AttrKind::kFloat)
      .attr("keep_aspect_ratio_policy", AttrKind::kString)
      .attr("mode", AttrKind::kString)
      .attr("nearest_mode", AttrKind::kString);
}

}  // namespace

ORTMODULE_OP("", Resize, 11)
    .input("X")
    .host_input("roi", Presence::kOptional)
    .host_input("scales", Presence::kOptional)
    .host_input("sizes", Presence::kOptional)
    .output("Y")
    .apply(resize_attributes)
    .infer(infer_resize)
    .older(10, 10, upgrade_by_scales)
    .formerly("Upsample", 7, 9, upgrade_by_scales)
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::ResizeGrad", {c.GO(0), c.sizes_of(c.I(0)), c.I(1), c.I(2), c.I(3)},
                     c.node().attributes()));
    });

// As ONNX Runtime's training graphs have it: dY has the sizes where scales are absent.
ORTMODULE_OP("com.microsoft", ResizeGrad, 1)
    .input("dY")
    .input("X")
    .host_input("roi", Presence::kOptional)
    .host_input("scales", Presence::kOptional)
    .output("dX")
    .apply(resize_attributes)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable();

// dX from dY and the sizes of X; the other inputs are Resize's.
ORTMODULE_OP("ai.ortmodule", ResizeGrad, 1)
    .input("dY")
    .host_input("x_sizes")
    .host_input("roi", Presence::kOptional)
    .host_input("scales", Presence::kOptional)
    .host_input("sizes", Presence::kOptional)
    .output("dX")
    .apply(resize_attributes)
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(1);
      c.out(0, c.dtype(0),
            dims         ? std::optional<Shape>(*dims)
            : c.shape(0) ? std::optional<Shape>(c.fresh_shape(c.shape(0)->size()))
                         : std::nullopt);
    })
    .no_grad({"x_sizes", "roi", "scales", "sizes"})
    .grad({"dY"}, [](GradContext& c) {
      Attributes attributes = c.node().attributes();
      attributes["extrapolation_value"] = 0.0;  // what lies outside has passed nothing on
      c.GI(0, c.emit("Resize", {c.GO(0), c.I(2), c.I(3), c.I(4)}, attributes));
    });

}  // namespace ortmodule

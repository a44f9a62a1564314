// Sizes, coordinates and weights of Resize. Formulas: the ONNX specification of Resize; the cubic kernel is the one of
// R. Keys, "Cubic convolution interpolation for digital image processing" (1981).
#include "ops/vision/resize_plan.h"

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "base/status.h"

namespace ortmodule {
namespace {

template <typename T>
T choice(const std::string& text, std::initializer_list<std::pair<const char*, T>> known, const char* attribute,
         const std::string& where) {
  for (const auto& [name, value] : known)
    if (text == name) return value;
  fail(ErrorCode::kInvalidGraph, "[Resize] unknown ", attribute, " '", text, "' (", where, ")");
}

double cubic(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// Where output element j lies in the input.
double source(const ResizeAttributes& a, const ResizeAxis& r, int64_t j) {
  const double x = static_cast<double>(j), in = static_cast<double>(r.in), width = r.scale * in;
  switch (a.coordinates) {
    case Coordinates::kHalfPixel:
      return (x + 0.5) / r.scale - 0.5;
    case Coordinates::kHalfPixelSymmetric:
      return in / 2 * (1 - static_cast<double>(r.out) / width) + (x + 0.5) / r.scale - 0.5;
    case Coordinates::kPytorchHalfPixel:
      return width == 1 ? -0.5 : (x + 0.5) / r.scale - 0.5;
    case Coordinates::kAlignCorners:
      return width == 1 ? 0 : x * (in - 1) / (width - 1);
    case Coordinates::kAsymmetric:
      return x / r.scale;
    case Coordinates::kTfHalfPixelForNearest:
      return (x + 0.5) / r.scale;
    case Coordinates::kTfCropAndResize: {
      const double span = (r.roi_end - r.roi_begin) * (in - 1);
      return r.roi_begin * (in - 1) + (width == 1 ? span / 2 : x * span / (width - 1));
    }
  }
  return 0;
}

int64_t nearest(NearestMode mode, double x) {
  const double low = std::floor(x), rest = x - low;
  bool up = false;
  switch (mode) {
    case NearestMode::kRoundPreferFloor:
      up = rest > 0.5;
      break;
    case NearestMode::kRoundPreferCeil:
      up = rest >= 0.5;
      break;
    case NearestMode::kFloor:
      break;
    case NearestMode::kCeil:
      up = rest > 0;
      break;
  }
  return static_cast<int64_t>(low) + (up ? 1 : 0);
}

// Weights of the elements floor(x) + start, floor(x) + start + 1, ...
struct Filter {
  int64_t start;
  size_t taps;
  double shrink;  // the kernel is stretched over 1 / shrink elements: antialiasing

  explicit Filter(const ResizeAttributes& a, double scale) {
    const double radius = a.mode == ResizeMode::kCubic ? 2 : 1;
    shrink = a.antialias ? std::min(scale, 1.0) : 1.0;
    start = static_cast<int64_t>(std::floor(-radius / shrink)) + 1;
    taps = static_cast<size_t>(2 - 2 * start);
  }
  double weight(const ResizeAttributes& a, double distance) const {
    const double x = distance * shrink;
    return a.mode == ResizeMode::kCubic ? cubic(x, a.cubic_a) : std::max(0.0, 1 - std::abs(x));
  }
};

}  // namespace

ResizeAttributes::ResizeAttributes(const Node& node)
    : cubic_a(node.get_float("cubic_coeff_a", -0.75)),
      extrapolation(node.get_float("extrapolation_value", 0)),
      antialias(node.get_int("antialias", 0) != 0),
      exclude_outside(node.get_int("exclude_outside", 0) != 0),
      axes(node.get_ints("axes")),
      where(node.describe()) {
  mode = choice<ResizeMode>(
      node.get_string("mode", "nearest"),
      {{"nearest", ResizeMode::kNearest}, {"linear", ResizeMode::kLinear}, {"cubic", ResizeMode::kCubic}}, "mode",
      where);
  coordinates = choice<Coordinates>(node.get_string("coordinate_transformation_mode", "half_pixel"),
                                    {{"half_pixel", Coordinates::kHalfPixel},
                                     {"half_pixel_symmetric", Coordinates::kHalfPixelSymmetric},
                                     {"pytorch_half_pixel", Coordinates::kPytorchHalfPixel},
                                     {"align_corners", Coordinates::kAlignCorners},
                                     {"asymmetric", Coordinates::kAsymmetric},
                                     {"tf_half_pixel_for_nn", Coordinates::kTfHalfPixelForNearest},
                                     {"tf_crop_and_resize", Coordinates::kTfCropAndResize}},
                                    "coordinate_transformation_mode", where);
  nearest = choice<NearestMode>(node.get_string("nearest_mode", "round_prefer_floor"),
                                {{"round_prefer_floor", NearestMode::kRoundPreferFloor},
                                 {"round_prefer_ceil", NearestMode::kRoundPreferCeil},
                                 {"floor", NearestMode::kFloor},
                                 {"ceil", NearestMode::kCeil}},
                                "nearest_mode", where);
  policy = choice<AspectPolicy>(node.get_string("keep_aspect_ratio_policy", "stretch"),
                                {{"stretch", AspectPolicy::kStretch},
                                 {"not_larger", AspectPolicy::kNotLarger},
                                 {"not_smaller", AspectPolicy::kNotSmaller}},
                                "keep_aspect_ratio_policy", where);
}

std::vector<size_t> ResizeAttributes::axes_of(size_t rank) const {
  std::vector<size_t> out;
  const auto n = static_cast<int64_t>(rank);
  for (int64_t axis : axes) {
    ORTMODULE_CHECK_GRAPH(axis >= -n && axis < n, "[Resize] axis ", axis, " is outside [", -n, ", ", n, ") (", where,
                          ")");
    out.push_back(static_cast<size_t>(axis < 0 ? axis + n : axis));
  }
  if (axes.empty())
    for (size_t i = 0; i < rank; ++i) out.push_back(i);
  return out;
}

// In float, as scales are stored: 0.7f * 10 is 7 there.
int64_t resized(int64_t in, double scale) {
  return static_cast<int64_t>(std::floor(static_cast<float>(scale) * static_cast<float>(in)));
}

std::vector<ResizeAxis> resize_axes(const ResizeAttributes& a, const std::vector<int64_t>& x,
                                    const ResizeRequest& request) {
  const std::vector<size_t> axes = a.axes_of(x.size());
  const bool by_sizes = !request.sizes.empty();
  const size_t given = by_sizes ? request.sizes.size() : request.scales.size();
  ORTMODULE_CHECK_GRAPH(given == axes.size(), "[Resize] expected ", axes.size(), by_sizes ? " sizes" : " scales",
                        ", got ", given, " (", a.where, ")");
  const bool crops = a.coordinates == Coordinates::kTfCropAndResize;
  ORTMODULE_CHECK_GRAPH(!crops || request.roi.size() == 2 * axes.size(), "[Resize] tf_crop_and_resize wants a roi of ",
                        2 * axes.size(), " numbers, got ", request.roi.size(), " (", a.where, ")");
  double shared = 0;  // the scale of every axis under an aspect policy
  if (by_sizes && a.policy != AspectPolicy::kStretch)
    for (size_t k = 0; k < axes.size(); ++k) {
      const double s = static_cast<double>(request.sizes[k]) / static_cast<double>(std::max<int64_t>(x[axes[k]], 1));
      const bool smaller = a.policy == AspectPolicy::kNotLarger;
      shared = k == 0 ? s : smaller ? std::min(shared, s) : std::max(shared, s);
    }
  std::vector<ResizeAxis> out;
  for (size_t k = 0; k < axes.size(); ++k) {
    ResizeAxis r{axes[k], x[axes[k]], 0, 1, 0, 1};
    const auto in = static_cast<double>(r.in);
    if (!by_sizes) {
      r.scale = request.scales[k];
      ORTMODULE_CHECK_GRAPH(r.scale > 0 && r.scale < 1e9, "[Resize] a scale of ", r.scale, " (", a.where, ")");
      r.out = resized(r.in, r.scale);
    } else if (shared > 0) {
      r.scale = shared;
      r.out = static_cast<int64_t>(shared * in + 0.5);
    } else {
      r.out = request.sizes[k];
      r.scale = r.in > 0 ? static_cast<double>(r.out) / in : 1;
    }
    ORTMODULE_CHECK_GRAPH(r.out >= 0, "[Resize] a size of ", r.out, " (", a.where, ")");
    ORTMODULE_CHECK_GRAPH(r.in > 0 || r.out == 0, "[Resize] axis ", r.axis, " is empty and should become ", r.out, " (",
                          a.where, ")");
    if (crops) {
      r.roi_begin = request.roi[k];
      r.roi_end = request.roi[k + axes.size()];
    }
    const bool same = r.in == r.out && r.scale == 1 && (!crops || (r.roi_begin == 0 && r.roi_end == 1)) &&
                      a.coordinates != Coordinates::kTfHalfPixelForNearest;
    if (!same) out.push_back(r);
  }
  return out;
}

ResizeTable resize_table(const ResizeAttributes& a, const ResizeAxis& axis) {
  const bool copies = a.mode == ResizeMode::kNearest;
  const Filter filter(a, axis.scale);
  const auto out = static_cast<size_t>(axis.out);
  ResizeTable t{copies ? 1 : filter.taps, {}, {}, {}};
  constexpr size_t kMost = size_t{1} << 40;
  ORTMODULE_CHECK(t.taps > 0 && out <= kMost / t.taps, kRuntime, "[Resize] a size of ", axis.out, " (", a.where, ")");
  Allowance::Collected().add((sizeof(int64_t) + sizeof(double)) * t.taps * out);
  t.indices.resize(t.taps * out);
  if (!copies) t.weights.resize(t.taps * out);
  std::vector<double> w(t.taps);
  for (size_t j = 0; j < out; ++j) {
    const double x = source(a, axis, static_cast<int64_t>(j));
    if (a.coordinates == Coordinates::kTfCropAndResize && (x < 0 || x > static_cast<double>(axis.in - 1)))
      t.outside.push_back(static_cast<int64_t>(j));
    const auto inside = [&](int64_t i) { return std::clamp<int64_t>(i, 0, axis.in - 1); };
    // Far outside nothing but the edge is left; the bound keeps the conversion to int64 defined.
    const double near = std::clamp(x, -1e15, 1e15);
    if (copies) {
      t.indices[j] = inside(nearest(a.nearest, near));
      continue;
    }
    const double low = std::floor(near);
    double total = 0;
    for (size_t k = 0; k < t.taps; ++k) {
      const int64_t i = static_cast<int64_t>(low) + filter.start + static_cast<int64_t>(k);
      w[k] = filter.weight(a, static_cast<double>(i) - near);
      if (a.exclude_outside && (i < 0 || i >= axis.in)) w[k] = 0;
      total += w[k];
      t.indices[k * out + j] = inside(i);
    }
    const bool normalize = (a.exclude_outside || a.antialias) && total != 0;
    for (size_t k = 0; k < t.taps; ++k) t.weights[k * out + j] = normalize ? w[k] / total : w[k];
  }
  return t;
}

}  // namespace ortmodule

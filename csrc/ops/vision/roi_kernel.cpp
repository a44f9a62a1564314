// Kernels of RoiAlign, MaxRoiPool and their gradients.
//
// Regions are read on the host and become a list of (element, weight) per output place: an average is then one
// embedding bag over the image's elements, a maximum one reduction per region. Formula: He et al., "Mask R-CNN" (2017),
// section 3, with the conventions of the ONNX specification.
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

struct RoiAlignAttributes {
  int64_t height, width, ratio;
  double scale;
  bool half_pixel, average;

  explicit RoiAlignAttributes(const Node& node)
      : height(node.get_int("output_height", 1)),
        width(node.get_int("output_width", 1)),
        ratio(node.get_int("sampling_ratio", 0)),
        scale(node.get_float("spatial_scale", 1)) {
    const std::string mode = node.get_string("mode", "avg");
    const std::string place = node.get_string("coordinate_transformation_mode", "half_pixel");
    ORTMODULE_CHECK_GRAPH(mode == "avg" || mode == "max", "[RoiAlign] unknown mode '", mode, "' (", node.describe(),
                          ")");
    ORTMODULE_CHECK_GRAPH(place == "half_pixel" || place == "output_half_pixel",
                          "[RoiAlign] unknown coordinate_transformation_mode '", place, "' (", node.describe(), ")");
    average = mode == "avg";
    half_pixel = place == "half_pixel";
  }
};

// The two elements around a position along an axis and their weights; both weights are 0 outside the image.
struct Around {
  int64_t low, high;
  double low_weight, high_weight;

  Around(double at, int64_t size) : low(0), high(0), low_weight(0), high_weight(0) {
    if (!(at >= -1 && at <= static_cast<double>(size))) return;
    at = std::max(at, 0.0);
    low = static_cast<int64_t>(at);
    if (low >= size - 1) {
      low = high = size - 1;
      at = static_cast<double>(low);
    } else {
      high = low + 1;
    }
    high_weight = at - static_cast<double>(low);
    low_weight = 1 - high_weight;
  }
};

// Samples of one region along one axis: `count` per output place.
struct AxisSamples {
  int64_t count;
  std::vector<Around> samples;

  AxisSamples(double start, double end, int64_t places, int64_t size, const RoiAlignAttributes& a) {
    double length = end - start;
    if (!a.half_pixel) length = std::max(length, 1.0);
    const double bin = length / static_cast<double>(places);
    const double wanted = a.ratio > 0 ? static_cast<double>(a.ratio) : std::ceil(bin);
    ORTMODULE_CHECK(std::isfinite(bin) && wanted < 65536, kRuntime, "[RoiAlign] a region of length ", length);
    count = std::max<int64_t>(0, static_cast<int64_t>(wanted));
    ORTMODULE_CHECK(places >= 0 && places < (int64_t{1} << 31), kRuntime, "[RoiAlign] an output of ", places);
    Allowance::Collected().add(static_cast<uint64_t>(places * count) * sizeof(Around));
    samples.reserve(static_cast<size_t>(places * count));
    for (int64_t p = 0; p < places; ++p)
      for (int64_t i = 0; i < count; ++i)
        samples.emplace_back(
            start + static_cast<double>(p) * bin + (static_cast<double>(i) + 0.5) * bin / static_cast<double>(count),
            size);
  }
};

// For each output place, in order, the image elements it reads; `offsets` says where a place begins, `regions` how many
// taps each place of a region has.
struct Taps {
  std::vector<int64_t> elements, offsets, regions;
  std::vector<double> weights;
};

Taps taps_of(const at::Tensor& x, const at::Tensor& given_rois, const at::Tensor& given_batch,
             const RoiAlignAttributes& a) {
  ORTMODULE_CHECK(x.dim() == 4 && given_rois.dim() == 2 && given_rois.size(1) == 4 && given_batch.dim() == 1 &&
                      given_batch.size(0) == given_rois.size(0),
                  kRuntime, "[RoiAlign] expected X [N, C, H, W], rois [R, 4] and batch_indices [R], got ", x.sizes(),
                  ", ", given_rois.sizes(), " and ", given_batch.sizes());
  const at::Tensor rois = given_rois.to(c10::kCPU, at::kDouble).contiguous();
  const at::Tensor batch = given_batch.to(c10::kCPU, at::kLong).contiguous();
  const int64_t h = x.size(2), w = x.size(3);
  ORTMODULE_CHECK(h > 0 && w > 0, kRuntime, "[RoiAlign] X of shape ", x.sizes(), " has nothing to read");
  const double* box = rois.const_data_ptr<double>();
  const int64_t* image = batch.const_data_ptr<int64_t>();
  const double shift = a.half_pixel ? 0.5 : 0;
  Taps taps;
  Allowance::Collected collected;
  for (int64_t r = 0; r < rois.size(0); ++r, box += 4) {
    ORTMODULE_CHECK(image[r] >= 0 && image[r] < x.size(0), kRuntime, "[RoiAlign] region ", r, " is of image ", image[r],
                    ", X has ", x.size(0));
    const auto place = [&](int i) { return box[i] * a.scale - shift; };
    const AxisSamples ys(place(1), place(3), a.height, h, a), xs(place(0), place(2), a.width, w, a);
    constexpr double kTapBytes = 4.0 * (sizeof(int64_t) + sizeof(double));
    collected.add(static_cast<uint64_t>(
        std::min(1e18, kTapBytes * static_cast<double>(ys.samples.size()) * static_cast<double>(xs.samples.size()))));
    const double share = a.average ? 1 / static_cast<double>(std::max<int64_t>(1, ys.count * xs.count)) : 1;
    const auto tap = [&](int64_t row, int64_t column, double weight) {
      taps.elements.push_back((image[r] * h + row) * w + column);
      taps.weights.push_back(weight * share);
    };
    for (int64_t p = 0; p < a.height; ++p)
      for (int64_t q = 0; q < a.width; ++q) {
        taps.offsets.push_back(static_cast<int64_t>(taps.elements.size()));
        for (int64_t i = 0; i < ys.count; ++i)
          for (int64_t j = 0; j < xs.count; ++j) {
            const Around& y = ys.samples[static_cast<size_t>(p * ys.count + i)];
            const Around& z = xs.samples[static_cast<size_t>(q * xs.count + j)];
            tap(y.low, z.low, y.low_weight * z.low_weight);
            tap(y.low, z.high, y.low_weight * z.high_weight);
            tap(y.high, z.low, y.high_weight * z.low_weight);
            tap(y.high, z.high, y.high_weight * z.high_weight);
          }
      }
    taps.regions.push_back(4 * ys.count * xs.count);
  }
  return taps;
}

at::Tensor on_device(const std::vector<int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::TensorOptions(at::kLong)).to(like.device());
}

// The maximum is taken over the weighted elements themselves, as the specification's reference does.
at::Tensor largest(const at::Tensor& rows, const Taps& taps, const at::Tensor& elements, const at::Tensor& weights,
                   int64_t places) {
  std::vector<at::Tensor> out;
  int64_t begin = 0;
  for (int64_t per_place : taps.regions) {
    const int64_t count = per_place * places;
    if (count == 0) {
      out.push_back(at::zeros({places, rows.size(1)}, rows.options()));
      continue;
    }
    const at::Tensor read = at::index_select(rows, 0, elements.narrow(0, begin, count));
    const at::Tensor weighted = read.mul(weights.narrow(0, begin, count).unsqueeze(1));
    out.push_back(at::amax(weighted.view({places, per_place, rows.size(1)}), 1));
    begin += count;
  }
  return at::stack(out);
}

at::Tensor roi_align(const at::Tensor& given, const at::Tensor& rois, const at::Tensor& batch,
                     const RoiAlignAttributes& a) {
  const Taps taps = taps_of(given, rois, batch, a);
  const auto count = static_cast<int64_t>(taps.regions.size());
  const int64_t channels = given.size(1);
  if (taps.elements.empty() || channels == 0) return at::zeros({count, channels, a.height, a.width}, given.options());
  const at::Tensor x = given.to(computed_in(given.scalar_type()));
  const at::Tensor rows = x.permute({0, 2, 3, 1}).reshape({-1, channels});
  const at::Tensor elements = on_device(taps.elements, x);
  const at::Tensor weights = at::tensor(taps.weights, at::TensorOptions(at::kDouble)).to(rows.options());
  const at::Tensor y =
      a.average ? std::get<0>(at::embedding_bag(rows, elements, on_device(taps.offsets, x), false, 0, false, weights))
                : largest(rows, taps, elements, weights, a.height * a.width);
  return y.view({count, a.height, a.width, channels}).permute({0, 3, 1, 2}).contiguous().to(given.scalar_type());
}

struct MaxRoiPoolAttributes {
  std::vector<int64_t> shape;
  double scale;
  explicit MaxRoiPoolAttributes(const Node& node)
      : shape(node.get_ints("pooled_shape")), scale(node.get_float("spatial_scale", 1)) {
    ORTMODULE_CHECK_GRAPH(shape.size() == 2, "[", node.op(), "] pooled_shape should be of 2 numbers, got ",
                          shape.size(), " (", node.describe(), ")");
  }
};

at::Tensor max_roi_pool(const at::Tensor& x, const at::Tensor& given_rois, const MaxRoiPoolAttributes& a) {
  ORTMODULE_CHECK(x.dim() == 4 && given_rois.dim() == 2 && given_rois.size(1) == 5, kRuntime,
                  "[MaxRoiPool] expected X [N, C, H, W] and rois [R, 5], got ", x.sizes(), " and ", given_rois.sizes());
  const at::Tensor rois = given_rois.to(c10::kCPU, at::kDouble).contiguous();
  const double* roi = rois.const_data_ptr<double>();
  const int64_t ph = a.shape[0], pw = a.shape[1];
  std::vector<at::Tensor> out;
  for (int64_t r = 0; r < rois.size(0); ++r, roi += 5) {
    ORTMODULE_CHECK(roi[0] >= 0 && roi[0] < static_cast<double>(x.size(0)), kRuntime, "[MaxRoiPool] region ", r,
                    " is of image ", roi[0], ", X has ", x.size(0));
    const at::Tensor image = x.select(0, static_cast<int64_t>(roi[0]));
    const auto place = [&](int i) { return std::round(std::clamp(roi[i] * a.scale, -1e9, 1e9)); };
    const double left = place(1), top = place(2);
    const double height = std::max(place(4) - top + 1, 1.0), width = std::max(place(3) - left + 1, 1.0);
    for (int64_t p = 0; p < ph; ++p)
      for (int64_t q = 0; q < pw; ++q) {
        const auto bound = [](double start, double length, int64_t i, int64_t n, int64_t size, bool end) {
          const double at = length / static_cast<double>(n) * static_cast<double>(end ? i + 1 : i);
          const double whole = (end ? std::ceil(at) : std::floor(at)) + start;
          return static_cast<int64_t>(std::clamp(whole, 0.0, static_cast<double>(size)));
        };
        const int64_t y0 = bound(top, height, p, ph, x.size(2), false), y1 = bound(top, height, p, ph, x.size(2), true);
        const int64_t x0 = bound(left, width, q, pw, x.size(3), false), x1 = bound(left, width, q, pw, x.size(3), true);
        out.push_back(y1 > y0 && x1 > x0 ? at::amax(image.slice(1, y0, y1).slice(2, x0, x1), {1, 2})
                                         : at::zeros({x.size(1)}, x.options()));
      }
  }
  if (out.empty()) return at::zeros({0, x.size(1), ph, pw}, x.options());
  return at::stack(out).view({rois.size(0), ph, pw, x.size(1)}).permute({0, 3, 1, 2}).contiguous();
}

TensorFunction roi_align_of(const Node& node) {
  return [a = RoiAlignAttributes(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {roi_align(in[0], in[1], in[2], a)};
  };
}

TensorFunction max_roi_pool_of(const Node& node) {
  return [a = MaxRoiPoolAttributes(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {max_roi_pool(in[0], in[1], a)};
  };
}

}  // namespace

ORTMODULE_KERNEL("", RoiAlign, "aten", function_kernel_of<roi_align_of>);
ORTMODULE_KERNEL("ai.ortmodule", RoiAlignGrad, "aten", rerun_kernel_of<roi_align_of>);
ORTMODULE_KERNEL("", MaxRoiPool, "aten", function_kernel_of<max_roi_pool_of>);
ORTMODULE_KERNEL("ai.ortmodule", MaxRoiPoolGrad, "aten", rerun_kernel_of<max_roi_pool_of>);

}  // namespace ortmodule

#include "ops/pool/max_planes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastPlaneWork = 32768;  // elements that a thread is worth

// A whole number of vectors of every level.
constexpr int64_t kLanes = 16;
int64_t in_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// As in ATen a later value counts if it is larger or no number.
ORTMODULE_INLINE void take_later(const float* values, const int32_t* places, int64_t count, float* best,
                                 int32_t* where) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i], old = best[i];
    const int32_t place = places[i], known = where[i];
    const bool take = (value > old) | (value != value);
    best[i] = take ? value : old;
    where[i] = take ? place : known;
  }
}

// The same where the values' places are `place`, `place` + `step`, ...
ORTMODULE_INLINE void take_later(const float* values, int32_t place, int32_t step, int64_t count, float* best,
                                 int32_t* where) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i], old = best[i];
    const int32_t known = where[i];
    const bool take = (value > old) | (value != value);
    best[i] = take ? value : old;
    where[i] = take ? place + static_cast<int32_t>(i) * step : known;
  }
}

// Every `step`-th value.
template <int known_step>
ORTMODULE_INLINE void pick(const float* from, int64_t step, int64_t count, float* to) {
  const int64_t stride = known_step ? known_step : step;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

// Note [Maxima in two directions]
// The first maximum of a window in the order of its elements lies in the first row that holds it, and is the first in
// that row: so the maxima of each line of the plane are found along the line first, once for all windows that share
// it, and then taken down the lines. A line is laid out as `stride` lists, padded with -inf at both ends: what element
// j of all windows of a row looks at lies side by side, and is a whole number of vectors.
class PlaneMaxima {
 public:
  PlaneMaxima(const PoolAxis& rows, const PoolAxis& columns)
      : rows_(rows),
        columns_(columns),
        width_(in_lanes(columns.out)),
        list_(in_lanes(std::max(width_ + (columns.kernel - 1) * columns.dilation / columns.stride + 1,
                                (columns.size + columns.pad - 1) / columns.stride + 1))),
        lists_(list_ * columns.stride, -std::numeric_limits<float>::infinity()),
        extent_((rows.kernel - 1) * rows.dilation + 1),
        kept_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(extent_)))),
        values_(width_ * (kept_ + 1)),
        places_(width_ * (kept_ + 1)),
        first_(width_) {
    for (int64_t ox = 0; ox < columns.out; ++ox) first_[ox] = static_cast<int32_t>(columns.first(ox));
  }

  ORTMODULE_SIMD void find(const float* plane, float* y, int64_t* indices) {
    float* best = values_.data() + kept_ * width_;
    int32_t* where = places_.data() + kept_ * width_;
    int64_t found = 0;  // lines
    for (int64_t oy = 0; oy < rows_.out; ++oy) {
      int64_t line = rows_.first(oy);
      const int64_t end = std::min(rows_.size, rows_.begin(oy) + extent_);
      for (found = std::max(found, rows_.begin(oy)); found < end; ++found) along(plane + found * columns_.size, found);
      std::copy_n(values_.data() + (line & (kept_ - 1)) * width_, width_, best);
      std::copy_n(places_.data() + (line & (kept_ - 1)) * width_, width_, where);
      while ((line += rows_.dilation) < end) {
        const int64_t at = (line & (kept_ - 1)) * width_;
        take_later(values_.data() + at, places_.data() + at, width_, best, where);
      }
      std::copy_n(best, columns_.out, y + oy * columns_.out);
      int64_t* to = indices + oy * columns_.out;
#pragma omp simd
      for (int64_t ox = 0; ox < columns_.out; ++ox) to[ox] = where[ox];
    }
  }

 private:
  // Maxima of all windows in one line, and their places in the plane.
  ORTMODULE_INLINE void along(const float* from, int64_t line) {
    const int64_t stride = columns_.stride, pad = columns_.pad;
    for (int64_t list = 0; list < stride; ++list) {
      const int64_t skipped = std::max<int64_t>(0, (pad - list + stride - 1) / stride);  // of the list, in the pad
      const int64_t start = list + skipped * stride - pad;
      if (start >= columns_.size) continue;
      const int64_t count = (columns_.size - 1 - start) / stride + 1;
      float* to = lists_.data() + list * list_ + skipped;
      if (stride == 1)
        pick<1>(from + start, 1, count, to);
      else if (stride == 2)
        pick<2>(from + start, 2, count, to);
      else
        pick<0>(from + start, stride, count, to);
    }
    float* best = values_.data() + (line & (kept_ - 1)) * width_;
    int32_t* where = places_.data() + (line & (kept_ - 1)) * width_;
    const auto begin = static_cast<int32_t>(line * columns_.size);
    std::fill_n(best, width_, -std::numeric_limits<float>::infinity());
#pragma omp simd
    for (int64_t ox = 0; ox < width_; ++ox) where[ox] = begin + first_[ox];
    for (int64_t j = 0; j < columns_.kernel; ++j) {
      const int64_t at = j * columns_.dilation;
      take_later(lists_.data() + at % stride * list_ + at / stride, begin + static_cast<int32_t>(at - pad),
                 static_cast<int32_t>(stride), width_, best, where);
    }
  }

  const PoolAxis rows_, columns_;
  const int64_t width_, list_;  // lengths of a row of windows and of a list, in whole vectors
  std::vector<float> lists_;
  const int64_t extent_, kept_;  // lines that a row of windows spans, and a power of two that is no less
  std::vector<float> values_;    // a row of windows per kept line; then the one that is being found
  std::vector<int32_t> places_;  // parallel
  std::vector<int32_t> first_;   // each window's first column that is not in the pad
};

}  // namespace

std::pair<at::Tensor, at::Tensor> max_of_planes(const at::Tensor& x, const PoolAttributes& a,
                                                c10::IntArrayRef padding) {
  const at::ScalarType type = x.scalar_type();
  const bool is_float = type == at::kFloat;
  if (!x.is_cpu() || !(is_float || type == at::kBFloat16 || type == at::kHalf) || x.dim() != 4 || a.rank() != 2 ||
      a.ceil || !x.is_contiguous() || x.numel() == 0 || x.size(2) * x.size(3) > INT32_MAX)
    return {};
  const PoolAxis rows(a, 0, x.size(2), padding[0]), columns(a, 1, x.size(3), padding[1]);
  if (!rows.is_plain() || !columns.is_plain()) return {};
  const at::Tensor y = at::empty({x.size(0), x.size(1), rows.out, columns.out}, x.options());
  const at::Tensor indices = at::empty(y.sizes(), x.options().dtype(at::kLong));
  const auto* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  int64_t* places = indices.mutable_data_ptr<int64_t>();
  const int64_t plane_in = rows.size * columns.size, plane_out = rows.out * columns.out;
  const auto bytes = static_cast<int64_t>(x.element_size());
  at::parallel_for(
      0, x.size(0) * x.size(1), std::max<int64_t>(1, kLeastPlaneWork / plane_in), [&](int64_t begin, int64_t end) {
        PlaneMaxima maxima(rows, columns);
        std::vector<float> wide(is_float ? 0 : plane_in), best(is_float ? 0 : plane_out);
        for (int64_t plane = begin; plane < end; ++plane) {
          const void* in = from + plane * plane_in * bytes;
          void* out = to + plane * plane_out * bytes;
          if (is_float) {
            maxima.find(static_cast<const float*>(in), static_cast<float*>(out), places + plane * plane_out);
            continue;
          }
          load_elements(type, in, 1, wide.data(), plane_in);
          maxima.find(wide.data(), best.data(), places + plane * plane_out);
          store_elements(type, best.data(), out, plane_out);
        }
      });
  return {y, indices};
}

}  // namespace ortmodule

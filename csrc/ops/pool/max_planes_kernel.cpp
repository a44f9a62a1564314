#include "ops/pool/max_planes.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "ops/cpu_simd.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastWork = 32768;  // elements that a thread is worth

// What one element of the windows of a row holds: `from` is its place for the first window, the next ones follow
// `stride` apart. As in ATen a later value counts if it is larger or no number.
template <int known_stride>
ORTMODULE_INLINE void look(const float* from, int32_t position, int32_t stride, int32_t count, float* best,
                           int32_t* where) {
  const int32_t step = known_stride ? known_stride : stride;
#pragma omp simd
  for (int32_t i = 0; i < count; ++i) {
    const float value = from[i * step], old = best[i];
    const int32_t place = where[i];
    const bool take = (value > old) | (value != value);
    best[i] = take ? value : old;
    where[i] = take ? position + i * step : place;
  }
}

ORTMODULE_SIMD void look_at_all(const float* from, int32_t position, int32_t stride, int32_t count, float* best,
                                int32_t* where) {
  if (stride == 1)
    look<1>(from, position, 1, count, best, where);
  else if (stride == 2)
    look<2>(from, position, 2, count, best, where);
  else
    look<0>(from, position, stride, count, best, where);
}

// One spatial axis.
struct Axis {
  int64_t size, out, kernel, stride, pad, dilation;

  Axis(const PoolAttributes& a, size_t axis, int64_t size, int64_t pad)
      : size(size), out(0), kernel(a.kernel[axis]), stride(a.strides[axis]), pad(pad), dilation(a.dilations[axis]) {
    const int64_t room = size + 2 * pad - dilation * (kernel - 1) - 1;
    if (room >= 0 && stride > 0) out = room / stride + 1;
  }
  int64_t begin(int64_t window) const { return window * stride - pad; }
  // The first place of a window that is not in the pad.
  int64_t first(int64_t window) const {
    const int64_t at = begin(window);
    return at >= 0 ? at : at + (-at + dilation - 1) / dilation * dilation;
  }
  // Which windows' element k lies in the plane: [low, high).
  int64_t low(int64_t k) const {
    return std::min(out, std::max<int64_t>(0, (pad - k * dilation + stride - 1) / stride));
  }
  int64_t high(int64_t k) const {
    const int64_t last = size - 1 + pad - k * dilation;
    return last < 0 ? 0 : std::min(out, last / stride + 1);
  }
  // ATen refuses wider pads; no window lies in the pad alone.
  bool is_plain() const { return out > 0 && pad >= 0 && 2 * pad <= kernel && dilation <= size; }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> max_of_planes(const at::Tensor& x, const PoolAttributes& a,
                                                c10::IntArrayRef padding) {
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || x.dim() != 4 || a.rank() != 2 || a.ceil || !x.is_contiguous() ||
      x.numel() == 0 || x.size(2) * x.size(3) > INT32_MAX)
    return {};
  const Axis rows(a, 0, x.size(2), padding[0]), columns(a, 1, x.size(3), padding[1]);
  if (!rows.is_plain() || !columns.is_plain()) return {};
  const at::Tensor y = at::empty({x.size(0), x.size(1), rows.out, columns.out}, x.options());
  const at::Tensor indices = at::empty(y.sizes(), x.options().dtype(at::kLong));
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  int64_t* places = indices.mutable_data_ptr<int64_t>();
  const int64_t grain = std::max<int64_t>(1, kLeastWork / (x.size(2) * x.size(3)));
  at::parallel_for(0, x.size(0) * x.size(1), grain, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> where(columns.out);
    for (int64_t row = begin * rows.out; row < end * rows.out; ++row) {
      const float* plane = from + row / rows.out * rows.size * columns.size;
      const int64_t oy = row % rows.out, top = rows.begin(oy), first = rows.first(oy);
      float* best = to + row * columns.out;
      std::fill_n(best, columns.out, -std::numeric_limits<float>::infinity());
      for (int64_t ox = 0; ox < columns.out; ++ox)
        where[ox] = static_cast<int32_t>(first * columns.size + columns.first(ox));
      for (int64_t i = 0; i < rows.kernel; ++i) {
        const int64_t line = top + i * rows.dilation;
        if (line < 0 || line >= rows.size) continue;
        for (int64_t j = 0; j < columns.kernel; ++j) {
          const int64_t low = columns.low(j), count = columns.high(j) - low;
          if (count <= 0) continue;
          const int64_t place = line * columns.size + columns.begin(low) + j * columns.dilation;
          look_at_all(plane + place, static_cast<int32_t>(place), static_cast<int32_t>(columns.stride),
                      static_cast<int32_t>(count), best + low, where.data() + low);
        }
      }
      std::copy_n(where.data(), columns.out, places + row * columns.out);
    }
  });
  return {y, indices};
}

}  // namespace ortmodule

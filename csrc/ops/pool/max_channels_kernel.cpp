#include "ops/pool/max_channels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu_simd.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastWork = 32768;  // elements that a thread is worth

// y = the maxima of rows of channels; as in ATen a later value counts if it is larger or no number.
ORTMODULE_SIMD void maxima(const float* const* rows, size_t count, float* y, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) y[c] = rows[0][c];
  for (size_t r = 1; r < count; ++r) {
    const float* const x = rows[r];
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const float value = x[c], old = y[c];
      const bool take = (value > old) | (value != value);
      y[c] = take ? value : old;
    }
  }
}

}  // namespace

at::Tensor max_of_channels(const at::Tensor& x, const PoolAttributes& a, c10::IntArrayRef padding) {
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || x.layout() != at::kStrided || x.dim() != 4 || a.rank() != 2 ||
      a.ceil || x.is_neg() || x.numel() == 0 || x.size(1) < 8 || !x.is_contiguous(at::MemoryFormat::ChannelsLast))
    return {};
  const PoolAxis rows(a, 0, x.size(2), padding[0]), columns(a, 1, x.size(3), padding[1]);
  if (!rows.is_plain() || !columns.is_plain()) return {};
  const int64_t channels = x.size(1), windows = rows.out * columns.out;
  at::Tensor y = at::empty({x.size(0), channels, rows.out, columns.out},
                           x.options().memory_format(at::MemoryFormat::ChannelsLast));
  const float* const from = x.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  const int64_t work = channels * rows.kernel * columns.kernel;
  at::parallel_for(0, x.size(0) * windows, std::max<int64_t>(1, kLeastWork / work), [&](int64_t begin, int64_t end) {
    std::vector<const float*> found(static_cast<size_t>(rows.kernel * columns.kernel));
    for (int64_t w = begin; w < end; ++w) {
      const int64_t picture = w / windows, row = w % windows / columns.out, column = w % columns.out;
      size_t count = 0;
      for (int64_t i = 0; i < rows.kernel; ++i) {
        const int64_t h = row * rows.stride - rows.pad + i * rows.dilation;
        if (h < 0 || h >= rows.size) continue;
        for (int64_t j = 0; j < columns.kernel; ++j) {
          const int64_t v = column * columns.stride - columns.pad + j * columns.dilation;
          if (v < 0 || v >= columns.size) continue;
          found[count++] = from + ((picture * rows.size + h) * columns.size + v) * channels;
        }
      }
      maxima(found.data(), count, to + w * channels, channels);
    }
  });
  return y;
}

}  // namespace ortmodule

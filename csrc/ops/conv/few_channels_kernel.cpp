#include "ops/conv/few_channels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/processor.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ORTMODULE_FEW_CHANNELS
#include <immintrin.h>
#endif

namespace ortmodule {

#ifdef ORTMODULE_FEW_CHANNELS
namespace {

#define AVX512 __attribute__((target("avx512f")))
#define AVX512_INLINE inline __attribute__((always_inline, target("avx512f")))

constexpr int64_t kLanes = 16, kWide = 2 * kLanes;  // results of a position in a vector, and in a block of filters
constexpr int64_t kMostTaps = 192;                  // numbers of a filter: a block of them stays in the first cache
constexpr int64_t kStripRows = 8;                   // rows of results that are made of one copy of the picture's
constexpr std::array<int64_t, 3> kPositions{14, 11, 8};  // of a tile, whose sums stay in registers

// The picture's rows under a strip, with zeros where the pads are.
struct Window {
  const float* data;
  int64_t channels, height, width;  // of a filter
  int64_t row, plane;               // from one row, and from one channel, to the next
};

// In every lane. An instruction, so that no compiler carries what the next place of a filter reads again to that place:
// there are no registers for it.
AVX512_INLINE __m512 everywhere(const float& x) {
  __m512 out;
  asm("vbroadcastss %1, %0" : "=v"(out) : "m"(x));
  return out;
}

// One block of filters at neighboring positions of a row.
template <int positions, int vectors, int stride>
AVX512 void tile(const Window& window, const float* filters, const float* bias, bool relu, float* y, int64_t step) {
  __m512 sums[positions][vectors];
#pragma GCC unroll 2
  for (int j = 0; j < vectors; ++j) {
    const __m512 start = bias ? _mm512_loadu_ps(bias + j * kLanes) : _mm512_setzero_ps();
#pragma GCC unroll 14
    for (int i = 0; i < positions; ++i) sums[i][j] = start;
  }
  for (int64_t c = 0; c < window.channels; ++c) {
    const float* row = window.data + c * window.plane;
    for (int64_t h = 0; h < window.height; ++h, row += window.row) {
      for (int64_t w = 0; w < window.width; ++w, filters += vectors * kLanes) {
        __m512 taps[vectors];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) taps[j] = _mm512_load_ps(filters + j * kLanes);
#pragma GCC unroll 14
        for (int i = 0; i < positions; ++i) {
          const __m512 x = everywhere(row[w + i * stride]);
#pragma GCC unroll 2
          for (int j = 0; j < vectors; ++j) sums[i][j] = _mm512_fmadd_ps(x, taps[j], sums[i][j]);
        }
      }
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < positions; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      const __mmask16 kept = relu ? _mm512_cmp_ps_mask(sums[i][j], _mm512_setzero_ps(), _CMP_NLT_UQ) : 0xFFFF;
      _mm512_storeu_ps(y + i * step + j * kLanes, _mm512_maskz_mov_ps(kept, sums[i][j]));
    }
  }
}

#undef AVX512
#undef AVX512_INLINE

using Tile = void (*)(const Window&, const float*, const float*, bool, float*, int64_t);

// By the index of its positions, its vectors less one, its stride less one.
constexpr Tile kTiles[3][2][2] = {{{tile<14, 1, 1>, tile<14, 1, 2>}, {tile<14, 2, 1>, tile<14, 2, 2>}},
                                  {{tile<11, 1, 1>, tile<11, 1, 2>}, {tile<11, 2, 1>, tile<11, 2, 2>}},
                                  {{tile<8, 1, 1>, tile<8, 1, 2>}, {tile<8, 2, 1>, tile<8, 2, 2>}}};

int64_t parts_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// The index of the tile that computes least twice: the last one of a row overlaps the one before it.
size_t best_positions(int64_t columns) {
  size_t best = kPositions.size() - 1;
  for (size_t i = best; i-- > 0;)
    if (kPositions[i] <= columns &&
        parts_of(columns, kPositions[i]) * kPositions[i] <= parts_of(columns, kPositions[best]) * kPositions[best])
      best = i;
  return best;
}

// One convolution, as each thread works on strips of it.
struct Convolution {
  at::Tensor x;
  int64_t channels, height, width;  // of a filter
  int64_t rows, columns, filters;   // of the result
  int64_t row_stride, column_stride, top, left;
  const float *taps, *bias;
  bool relu;
  float* y;

  int64_t padded() const { return (columns - 1) * column_stride + width; }
  int64_t strips() const { return parts_of(rows, kStripRows); }
  int64_t window_rows() const { return (kStripRows - 1) * row_stride + height; }

  // Rows `first` and on of picture n, as many as a strip of `count` rows looks at.
  void copy_rows(int64_t n, int64_t first, int64_t count, float* to) const {
    const int64_t wide = padded(), high = (count - 1) * row_stride + height, begin = first * row_stride - top;
    const int64_t from = std::min(left, wide), some = std::clamp<int64_t>(wide - from, 0, x.size(3));
    const int64_t step = x.stride(3);
    for (int64_t c = 0; c < channels; ++c) {
      const float* const plane = x.const_data_ptr<float>() + n * x.stride(0) + c * x.stride(1);
      for (int64_t h = begin; h < begin + high; ++h, to += wide) {
        if (h < 0 || h >= x.size(2)) {
          std::fill_n(to, wide, 0.0f);
          continue;
        }
        const float* const row = plane + h * x.stride(2);
        std::fill_n(to, from, 0.0f);
        if (step == 1)
          std::copy_n(row, some, to + from);
        else
          for (int64_t w = 0; w < some; ++w) to[from + w] = row[w * step];
        std::fill_n(to + from + some, wide - from - some, 0.0f);
      }
    }
  }

  void make_strip(int64_t n, int64_t first, float* copy) const {
    const int64_t count = std::min(kStripRows, rows - first), wide = padded();
    copy_rows(n, first, count, copy);
    const size_t kind = best_positions(columns);
    const int64_t positions = kPositions[kind], plane = ((count - 1) * row_stride + height) * wide;
    for (int64_t f = 0; f < filters; f += kWide) {
      const int64_t vectors = std::min(kWide, filters - f) / kLanes;
      const Tile run = kTiles[kind][vectors - 1][column_stride - 1];
      for (int64_t r = 0; r < count; ++r) {
        float* const row = y + ((n * rows + first + r) * columns) * filters + f;
        for (int64_t at = 0; at < columns; at += positions) {
          const int64_t column = std::min(at, columns - positions);
          const Window window{
              copy + r * row_stride * wide + column * column_stride, channels, height, width, wide, plane};
          run(window, taps + f * channels * height * width, bias ? bias + f : nullptr, relu, row + column * filters,
              filters);
        }
      }
    }
  }
};

}  // namespace

bool is_few_channels(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a, c10::IntArrayRef y) {
  const auto is_one = [](int64_t n) { return n == 1; };
  return has_full_avx512() && x.is_cpu() && x.scalar_type() == at::kFloat && w.scalar_type() == at::kFloat &&
         x.dim() == 4 && w.dim() == 4 && a.group == 1 && x.size(1) == w.size(1) && w.size(1) <= 4 &&
         std::all_of(a.dilations.begin(), a.dilations.end(), is_one) && a.strides[1] <= 2 && w.size(0) % kLanes == 0 &&
         w.numel() <= kMostTaps * w.size(0) && y[3] >= kPositions.back();
}

at::Tensor few_channel_filters(const at::Tensor& w) {
  const at::Tensor out = at::empty({w.numel()}, w.options());
  const int64_t filters = w.size(0);
  float* to = out.mutable_data_ptr<float>();
  for (int64_t f = 0; f < filters; f += kWide) {
    const int64_t count = std::min(kWide, filters - f);
    for (int64_t c = 0; c < w.size(1); ++c)
      for (int64_t h = 0; h < w.size(2); ++h)
        for (int64_t v = 0; v < w.size(3); ++v)
          for (int64_t i = 0; i < count; ++i)
            *to++ =
                w.const_data_ptr<float>()[(f + i) * w.stride(0) + c * w.stride(1) + h * w.stride(2) + v * w.stride(3)];
  }
  return out;
}

at::Tensor few_channel_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& filters,
                                   const at::Tensor& bias, const ConvAttributes& a, c10::IntArrayRef padding,
                                   c10::IntArrayRef y, bool relu) {
  at::Tensor out = at::empty(y, x.options().memory_format(at::MemoryFormat::ChannelsLast));
  const Convolution all{x,
                        w.size(1),
                        w.size(2),
                        w.size(3),
                        y[2],
                        y[3],
                        y[1],
                        a.strides[0],
                        a.strides[1],
                        padding[0],
                        padding[1],
                        filters.const_data_ptr<float>(),
                        bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                        relu,
                        out.mutable_data_ptr<float>()};
  at::parallel_for(0, x.size(0) * all.strips(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> copy(static_cast<size_t>(all.channels * all.window_rows() * all.padded()));
    for (int64_t strip = begin; strip < end; ++strip)
      all.make_strip(strip / all.strips(), strip % all.strips() * kStripRows, copy.data());
  });
  return out;
}

#else

bool is_few_channels(const at::Tensor&, const at::Tensor&, const ConvAttributes&, c10::IntArrayRef) { return false; }
at::Tensor few_channel_filters(const at::Tensor& w) { return w; }
at::Tensor few_channel_convolution(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                   const ConvAttributes&, c10::IntArrayRef, c10::IntArrayRef, bool) {
  return {};
}

#endif

}  // namespace ortmodule

#include "base/status.h"
#include "ops/conv/small_planes.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <vector>

#include "kernels/processor.h"
#include "products/matmul_provider.h"

namespace ortmodule {
namespace {

constexpr int64_t kMostPositions = 8;  // of an output plane
constexpr int64_t kMostWindowBytes = int64_t{1} << 28;

// Sizes at which the product is the faster way. `multiplications`: below, the calls cost more than the work.
struct Gains {
  int64_t least_multiplications, least_filters;  // of a gradient
  // Forward, there must be few rows as well, or so many filters.
  int64_t most_rows, least_forward_filters;
  bool points;  // filters of one position gain forward as well
};
// Filters of half a million no longer stay in the caches near a thread while a direct convolution changes their layout,
// once for each gradient. Measured on Zen 4, one thread, where the gradients of 512 x 512 x 3 x 3 filters take half the
// time and those of 64 x 64 x 3 x 3 twice.
constexpr Gains kElsewhere{int64_t{1} << 21, int64_t{1} << 19, 64, INT64_MAX, false};
// On a Xeon with AVX-512, one and two threads, 32 to 256 rows, filters from 64 x 64 to 512 x 2048, 1 x 1 and 3 x 3,
// gradients took 0.09 to 0.88 of the time; forward 0.13 to 0.95 in what is taken here, up to 1.2 elsewhere.
constexpr Gains kIntel{int64_t{1} << 17, 0, 64, int64_t{1} << 20, true};

// The sizes of one call. Windows are rows of channels x h x w numbers, as the filters are.
struct Windows {
  int64_t pictures, channels, height, width, filters, h, w, out_height, out_width;
  int64_t stride_y, stride_x, pad_y, pad_x, step_y, step_x;

  Windows(const at::Tensor& x, const at::Tensor& filter, const ConvAttributes& a, c10::IntArrayRef y)
      : pictures(x.size(0)),
        channels(x.size(1)),
        height(x.size(2)),
        width(x.size(3)),
        filters(filter.size(0)),
        h(filter.size(2)),
        w(filter.size(3)),
        out_height(y[2]),
        out_width(y[3]),
        stride_y(a.strides[0]),
        stride_x(a.strides[1]),
        pad_y(a.pads[0]),
        pad_x(a.pads[1]),
        step_y(a.dilations[0]),
        step_x(a.dilations[1]) {}

  int64_t positions() const { return out_height * out_width; }
  int64_t rows() const { return pictures * positions(); }
  int64_t row_size() const { return channels * h * w; }

  // Calls f(plane's offset, offset in the row) for what of a window at (oy, ox) lies within the picture.
  template <class F>
  void each_inside(int64_t oy, int64_t ox, F&& f) const {
    for (int64_t i = 0; i < h; ++i) {
      const int64_t y = oy * stride_y - pad_y + i * step_y;
      if (y < 0 || y >= height) continue;
      for (int64_t j = 0; j < w; ++j) {
        const int64_t x = ox * stride_x - pad_x + j * step_x;
        if (x >= 0 && x < width) f(y * width + x, i * w + j);
      }
    }
  }
};

// For each output position the pairs of offsets that each_inside finds: the same for all pictures and channels.
struct Offsets {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  std::vector<size_t> begin;

  explicit Offsets(const Windows& s) {
    for (int64_t oy = 0; oy < s.out_height; ++oy) {
      for (int64_t ox = 0; ox < s.out_width; ++ox) {
        begin.push_back(pairs.size());
        s.each_inside(oy, ox, [&](int64_t plane, int64_t row) {
          pairs.emplace_back(static_cast<int32_t>(plane), static_cast<int32_t>(row));
        });
      }
    }
    begin.push_back(pairs.size());
  }
};

// [pictures * positions, channels * h * w]; zero where a window hangs over the edge.
at::Tensor window_rows(const at::Tensor& x, const Windows& s) {
  const Offsets offsets(s);
  at::Tensor rows = at::empty({s.rows(), s.row_size()}, x.options());
  const float* from = x.const_data_ptr<float>();
  float* to = rows.mutable_data_ptr<float>();
  const int64_t plane = s.height * s.width, window = s.h * s.w, positions = s.positions();
  at::parallel_for(0, s.rows(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = to + r * s.row_size();
      const float* picture = from + r / positions * s.channels * plane;
      const size_t first = offsets.begin[r % positions], last = offsets.begin[r % positions + 1];
      if (static_cast<int64_t>(last - first) < window) std::fill(row, row + s.row_size(), 0.0f);
      for (int64_t c = 0; c < s.channels; ++c, row += window, picture += plane)
        for (size_t k = first; k < last; ++k) row[offsets.pairs[k].second] = picture[offsets.pairs[k].first];
    }
  });
  return rows;
}

// The gradient of window_rows.
at::Tensor add_windows(const at::Tensor& rows, const at::Tensor& x, const Windows& s) {
  const Offsets offsets(s);
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const float* from = rows.const_data_ptr<float>();
  float* to = dx.mutable_data_ptr<float>();
  const int64_t plane = s.height * s.width, window = s.h * s.w, positions = s.positions();
  at::parallel_for(0, s.pictures, 1, [&](int64_t begin, int64_t end) {
    std::fill(to + begin * s.channels * plane, to + end * s.channels * plane, 0.0f);
    for (int64_t r = begin * positions; r < end * positions; ++r) {
      const float* row = from + r * s.row_size();
      float* picture = to + r / positions * s.channels * plane;
      const size_t first = offsets.begin[r % positions], last = offsets.begin[r % positions + 1];
      for (int64_t c = 0; c < s.channels; ++c, row += window, picture += plane)
        for (size_t k = first; k < last; ++k) picture[offsets.pairs[k].first] += row[offsets.pairs[k].second];
    }
  });
  return dx;
}

// [N, O, H', W'] from [N * H' * W', O], or the other way.
at::Tensor planes_from_rows(const at::Tensor& rows, c10::IntArrayRef y) {
  return rows.view({y[0], y[2] * y[3], y[1]}).transpose(1, 2).contiguous().view(y);
}
at::Tensor rows_from_planes(const at::Tensor& y) {
  return y.flatten(2).transpose(1, 2).contiguous().view({-1, y.size(1)});
}

}  // namespace

bool is_better_product(const at::Tensor& x, const at::Tensor& w, const ConvAttributes& a, c10::IntArrayRef y,
                       bool forward) {
  if (!x.is_cpu() || x.dim() != 4 || a.group != 1 || x.scalar_type() != at::kFloat || w.scalar_type() != at::kFloat)
    return false;
  if (!x.is_contiguous() || !w.is_contiguous() || deterministic_compute()) return false;
  const int64_t positions = y[2] * y[3], rows = y[0] * positions,
                row_size = w.numel() / std::max<int64_t>(w.size(0), 1);
  const Gains& gains = is_intel() && has_full_avx512() ? kIntel : kElsewhere;
  const bool gains_forward = (gains.points && w.size(2) * w.size(3) == 1) || w.numel() >= gains.least_forward_filters ||
                             rows <= gains.most_rows;
  return y[2] > 0 && y[3] > 0 && positions <= kMostPositions && x.size(1) == w.size(1) &&
         w.numel() >= gains.least_filters && (!forward || gains_forward) &&
         x.size(2) * x.size(3) <= 16 * kMostPositions && rows * w.numel() >= gains.least_multiplications &&
         rows * row_size * static_cast<int64_t>(sizeof(float)) <= kMostWindowBytes;
}

at::Tensor product_convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                               const ConvAttributes& a, c10::IntArrayRef y) {
  const Windows s(x, w, a, y);
  return planes_from_rows(linear_product(window_rows(x, s), w.view({s.filters, s.row_size()}), bias), y);
}

ConvGradients product_convolution_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                            const ConvAttributes& a, const std::array<bool, 3>& wants) {
  ORTMODULE_CHECK(dy.dim() == 4 && dy.size(0) == x.size(0) && dy.size(1) == w.size(0), kRuntime, "[ConvGrad] dY ",
                  dy.sizes(), " does not fit X ", x.sizes(), " and W ", w.sizes());
  const Windows s(x, w, a, dy.sizes());
  const at::Tensor gradient = rows_from_planes(dy);
  ConvGradients out;
  // The windows' rows are gone before their gradient comes.
  if (wants[1]) out[1] = transposed_product(gradient, window_rows(x, s)).view(w.sizes());
  if (wants[0]) out[0] = add_windows(matrix_product(gradient, w.view({s.filters, s.row_size()})), x, s);
  if (wants[2]) out[2] = at::sum(gradient, 0);
  return out;
}

}  // namespace ortmodule

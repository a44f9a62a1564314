#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/small_tensor.h"
#include "ops/reduce/mean_of_pictures.h"
#include "products/column_sum.h"

namespace ortmodule {
namespace {

constexpr int64_t kLargestPicture = 1 << 16;  // elements of all channels; from here on at::mean's code does not matter
constexpr int64_t kGrain = 1 << 15;           // elements that are worth a thread

bool are_planes(c10::IntArrayRef axes) {
  if (axes.size() != 2) return false;
  const int64_t a = axes[0] < 0 ? axes[0] + 4 : axes[0], b = axes[1] < 0 ? axes[1] + 4 : axes[1];
  return std::min(a, b) == 2 && std::max(a, b) == 3;
}

}  // namespace

at::Tensor mean_of_pictures(const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || x.layout() != at::kStrided || x.dim() != 4 || x.is_neg() ||
      x.numel() == 0 || !are_planes(axes) || x.is_contiguous() || !x.is_contiguous(at::MemoryFormat::ChannelsLast))
    return {};
  const int64_t channels = x.size(1), places = x.size(2) * x.size(3), picture = channels * places;
  if (picture > kLargestPicture) return {};
  const int64_t pictures = x.size(0);
  at::Tensor y = keep ? make_float({pictures, channels, 1, 1}) : make_float({pictures, channels});
  const float* const from = x.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  at::parallel_for(0, pictures, std::max<int64_t>(1, kGrain / picture), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const means = to + n * channels;
      column_sums(from + n * picture, places, channels, channels, means);
      for (int64_t c = 0; c < channels; ++c) means[c] /= static_cast<float>(places);
    }
  });
  return y;
}

}  // namespace ortmodule

// Softmax and cross entropy of one row of float scores on the CPU, and labels as kernels read them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/typed_error.h"
#include "kernels/cpu_simd.h"

namespace ortmodule {

[[maybe_unused]] ORTMODULE_SIMD static float row_max(const float* x, int64_t n) {
  float best = x[0];
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// Partial sums of a thousand terms go into a double: a vocabulary is too long for one float.
[[maybe_unused]] ORTMODULE_SIMD static double row_exp_sum(const float* x, float max, int64_t n) {
  double total = 0;
  for (int64_t tile = 0; tile < n; tile += 1024) {
    const int64_t end = std::min(n, tile + 1024);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = tile; i < end; ++i) sum += simd_exp(x[i] - max);
    total += sum;
  }
  return total;
}

// out may be x.
[[maybe_unused]] ORTMODULE_SIMD static void row_log_prob(const float* x, float max, float log_sum, float* out,
                                                         int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] - max - log_sum;
}
// Probabilities below 2^-100 become zero: they vanish beside the others of their row and column, but their products are
// denormal numbers, each of which costs Intel's processors a hundred cycles (scores that spread wide have many).
[[maybe_unused]] ORTMODULE_SIMD static void row_scaled_softmax(const float* x, float max, float log_sum, float factor,
                                                               float* out, int64_t n) {
  constexpr float kNegligible = 0x1p-100f;
  for (int64_t i = 0; i < n; ++i) {
    const float p = simd_exp(x[i] - max - log_sum);
    const uint32_t counts = -static_cast<uint32_t>(!(p < kNegligible));  // NaN stays NaN
    out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(p) & counts) * factor;
  }
}

struct Labels {
  const int64_t* data;
  const float* weight;  // null: 1 for every class
  int64_t classes, ignore_index;

  // `weights` may be undefined.
  static void check_weights(const at::Tensor& weights, int64_t classes, const char* name) {
    ORTMODULE_CHECK(!weights.defined() || (weights.dim() == 1 && weights.numel() == classes), kRuntime, "[", name,
                    "] expected one weight for each of ", classes, " classes, got shape ", weights.sizes());
  }

  bool ignored(int64_t row) const { return data[row] == ignore_index; }
  float weight_of(int64_t row) const { return weight ? weight[data[row]] : 1.0f; }
  void check(int64_t rows, const char* name) const {
    for (int64_t r = 0; r < rows; ++r)
      ORTMODULE_CHECK_INDEX(ignored(r) || (data[r] >= 0 && data[r] < classes), "[", name, "] label ", data[r],
                            " of row ", r, " is outside [0, ", classes, ")");
  }
  double total(int64_t rows) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
      if (!ignored(r)) sum += weight_of(r);
    return sum;
  }
};

// Rows of the work split so that one task has a few tens of thousands of elements.
inline int64_t row_grain(int64_t classes) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, classes)); }

}  // namespace ortmodule

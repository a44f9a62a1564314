// The rows of flash_rows.h.
#include "ops/attention/flash_rows.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numbers>

#include "kernels/cpu_simd.h"
#include "kernels/philox.h"

namespace ortmodule {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = std::numbers::log2e_v<float>;

ORTMODULE_INLINE int64_t whole_vectors(int64_t n) { return (n + kRowStep - 1) / kRowStep * kRowStep; }

void words_any(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words) {
  for (int64_t b = 0; b < blocks; ++b) philox_block(seed, offset, first + b, words + b * kPhiloxBlock);
}

// A reduction clause would combine the lanes one after the other, for which short rows wait longer than for their work.
template <typename Combine>
ORTMODULE_INLINE float reduced(float* lanes, Combine combine) {
#pragma omp simd
  for (int64_t l = 0; l < 8; ++l) lanes[l] = combine(lanes[l], lanes[l + 8]);
#pragma omp simd
  for (int64_t l = 0; l < 4; ++l) lanes[l] = combine(lanes[l], lanes[l + 4]);
  return combine(combine(lanes[0], lanes[1]), combine(lanes[2], lanes[3]));
}

#if defined(__x86_64__)
ORTMODULE_AVX2 void words_avx2(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words) {
  for (int64_t b = 0; b < blocks; ++b) philox_block_avx2(seed, offset, first + b, words + b * kPhiloxBlock);
}
#endif

}  // namespace

ORTMODULE_SIMD float largest_in_row(float* s, int64_t n) {
  const int64_t room = whole_vectors(n);
  for (int64_t i = n; i < room; ++i) s[i] = kMinusInfinity;
  float lanes[kRowStep];
  std::fill(lanes, lanes + kRowStep, kMinusInfinity);
  for (int64_t i = 0; i < room; i += kRowStep) {
#pragma omp simd
    for (int64_t l = 0; l < kRowStep; ++l) lanes[l] = s[i + l] > lanes[l] ? s[i + l] : lanes[l];
  }
  return reduced(lanes, [](float a, float b) { return a > b ? a : b; });
}

ORTMODULE_SIMD float scale_row(float* s, const float* bias, float scale, int64_t n) {
  float largest = kMinusInfinity;
  if (bias) {
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; ++i) {
      const float x = s[i] * scale + bias[i];
      s[i] = x;
      largest = x > largest ? x : largest;
    }
  } else {
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; ++i) {
      const float x = s[i] * scale;
      s[i] = x;
      largest = x > largest ? x : largest;
    }
  }
  const int64_t room = whole_vectors(n);
  for (int64_t i = n; i < room; ++i) s[i] = kMinusInfinity;
  return largest;
}

// The base changes last: masks of the lowest number there is must not overflow.
ORTMODULE_SIMD float exp_row(float* s, float scale, float shift, int64_t n) {
  const float factor = scale * kLog2e;
  float lanes[kRowStep] = {};
  for (int64_t i = 0; i < n; i += kRowStep) {
#pragma omp simd
    for (int64_t l = 0; l < kRowStep; ++l) {
      const float x = simd_exp2((s[i + l] - shift) * factor);
      s[i + l] = x;
      lanes[l] += x;
    }
  }
  return reduced(lanes, std::plus<float>());
}

ORTMODULE_SIMD void probability_row(float* s, const float* bias, float scale, float lse, int64_t n) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = simd_exp2((s[i] * scale + bias[i] - lse) * kLog2e);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = simd_exp2((s[i] * scale - lse) * kLog2e);
  }
}

ORTMODULE_SIMD void raw_probability_row(float* s, float scale, float lse, int64_t n) {
  const float factor = scale * kLog2e;
  const int64_t room = whole_vectors(n);
#pragma omp simd
  for (int64_t i = 0; i < room; ++i) s[i] = simd_exp2((s[i] - lse) * factor);
}

ORTMODULE_SIMD void drop_row(float* p, const uint32_t* words, uint32_t threshold, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] = words[i] >= threshold ? p[i] : 0.0f;
}

ORTMODULE_SIMD void score_grad_row(float* dp, const float* p, float delta, int64_t n) {
  const int64_t room = whole_vectors(n);
#pragma omp simd
  for (int64_t i = 0; i < room; ++i) dp[i] = p[i] * (dp[i] - delta);
}

ORTMODULE_SIMD void dropped_score_grad_row(float* dp, float* p, const uint32_t* words, uint32_t threshold, float factor,
                                           float delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float f = words[i] >= threshold ? factor : 0.0f;
    dp[i] = p[i] * (dp[i] * f - delta);
    p[i] *= f;
  }
}

ORTMODULE_SIMD void multiply_row(float* x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

ORTMODULE_SIMD void add_row(float* sum, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

ORTMODULE_SIMD void dot_rows(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t rows, int64_t n,
                             float* out) {
  for (int64_t r = 0; r < rows; ++r, a += a_step, b += b_step) {
    float lanes[kRowStep] = {};
    int64_t i = 0;
    for (; i + kRowStep <= n; i += kRowStep) {
#pragma omp simd
      for (int64_t l = 0; l < kRowStep; ++l) lanes[l] += a[i + l] * b[i + l];
    }
    for (; i < n; ++i) lanes[i % kRowStep] += a[i] * b[i];
    out[r] = reduced(lanes, std::plus<float>());
  }
}

ORTMODULE_SIMD float sum_row(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

void philox_words(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return words_avx2(seed, offset, first, blocks, words);
#endif
  words_any(seed, offset, first, blocks, words);
}

}  // namespace ortmodule

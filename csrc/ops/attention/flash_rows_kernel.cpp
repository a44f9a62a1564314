// The rows of flash_rows.h.
#include "ops/attention/flash_rows.h"

#include <limits>

#include "ops/cpu_simd.h"
#include "ops/philox.h"

namespace ortmodule {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void words_any(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words) {
  for (int64_t b = 0; b < blocks; ++b) philox_block(seed, offset, first + b, words + b * kPhiloxBlock);
}

#if defined(__x86_64__)
ORTMODULE_AVX2 void words_avx2(uint64_t seed, uint64_t offset, uint64_t first, int64_t blocks, uint32_t* words) {
  for (int64_t b = 0; b < blocks; ++b) philox_block_avx2(seed, offset, first + b, words + b * kPhiloxBlock);
}
#endif

}  // namespace

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
  return largest;
}

ORTMODULE_SIMD float exp_row(float* s, float shift, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float x = simd_exp(s[i] - shift);
    s[i] = x;
    sum += x;
  }
  return sum;
}

ORTMODULE_SIMD void probability_row(float* s, const float* bias, float scale, float shift, int64_t n) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = simd_exp(s[i] * scale + bias[i] - shift);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = simd_exp(s[i] * scale - shift);
  }
}

ORTMODULE_SIMD void drop_row(float* p, const uint32_t* words, uint32_t threshold, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] = words[i] >= threshold ? p[i] : 0.0f;
}

ORTMODULE_SIMD void score_grad_row(float* dp, const float* p, float delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - delta);
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

ORTMODULE_SIMD float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
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

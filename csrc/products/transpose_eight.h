// 8 rows of 8 floats become columns, in AVX2 registers; for *_kernel.cpp files that pack operands of products.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#include <cstdint>

namespace ortmodule {

// Another type than float needs a function of this name, which says what floats eight of it are.
inline __attribute__((always_inline, target("avx2"))) __m256 load_eight(const float* from) {
  return _mm256_loadu_ps(from);
}

// to[p * width + i] = from[i * step + p] for i, p < 8: pairs, then quadruples, then halves change places.
template <class T>
inline __attribute__((always_inline, target("avx2"))) void transpose_eight(const T* from, int64_t step, float* to,
                                                                           int64_t width) {
  __m256 rows[8], pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) rows[i] = load_eight(from + i * step);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    rows[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    rows[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    rows[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * width, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * width, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
  }
}

}  // namespace ortmodule
#endif

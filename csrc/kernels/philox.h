// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), laid out for vector units.
//
// Elements come in blocks of 64: block b uses the 16 counters 16 b .. 16 b + 15 and word w of counter l decides
// element 64 b + 16 w + l. The mapping depends on the element's index alone, never on threads or vector width.
#pragma once

#include <cstdint>

#include "kernels/cpu_simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ortmodule {

constexpr uint32_t kPhiloxLanes = 16;
constexpr int64_t kPhiloxBlock = 4 * kPhiloxLanes;

// Fills words[64] with the uniform 32-bit words of block `block`.
ORTMODULE_INLINE void philox_block(uint64_t seed, uint64_t offset, uint64_t block, uint32_t* words) {
  const uint64_t first = block * kPhiloxLanes;  // a multiple of 16: the lanes never carry into the upper half
  for (uint32_t l = 0; l < kPhiloxLanes; ++l) {
    uint32_t c0 = static_cast<uint32_t>(first) + l, c1 = static_cast<uint32_t>(first >> 32);
    uint32_t c2 = static_cast<uint32_t>(offset), c3 = static_cast<uint32_t>(offset >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    words[l] = c0;
    words[kPhiloxLanes + l] = c1;
    words[2 * kPhiloxLanes + l] = c2;
    words[3 * kPhiloxLanes + l] = c3;
  }
}

#if defined(__x86_64__)
#define ORTMODULE_AVX2 __attribute__((target("avx2")))

ORTMODULE_INLINE ORTMODULE_AVX2 void philox_multiply(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

// The same words. Compilers widen 32-bit products with four times the shuffles, which is why this is written out.
ORTMODULE_INLINE ORTMODULE_AVX2 void philox_block_avx2(uint64_t seed, uint64_t offset, uint64_t block,
                                                       uint32_t* words) {
  const uint64_t first = block * kPhiloxLanes;
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0[2], c1[2], c2[2], c3[2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    c0[half] = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first) + 8 * half),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    c1[half] = _mm256_set1_epi32(static_cast<int>(first >> 32));
    c2[half] = _mm256_set1_epi32(static_cast<int>(offset));
    c3[half] = _mm256_set1_epi32(static_cast<int>(offset >> 32));
  }
  __m256i key0 = _mm256_set1_epi32(static_cast<int>(seed)), key1 = _mm256_set1_epi32(static_cast<int>(seed >> 32));
  const __m256i step0 = _mm256_set1_epi32(static_cast<int>(0x9E3779B9u));
  const __m256i step1 = _mm256_set1_epi32(static_cast<int>(0xBB67AE85u));
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i high0, low0, high1, low1;
      philox_multiply(c0[half], m0, high0, low0);
      philox_multiply(c2[half], m1, high1, low1);
      c0[half] = _mm256_xor_si256(_mm256_xor_si256(high1, c1[half]), key0);
      c2[half] = _mm256_xor_si256(_mm256_xor_si256(high0, c3[half]), key1);
      c1[half] = low1;
      c3[half] = low0;
    }
    key0 = _mm256_add_epi32(key0, step0);
    key1 = _mm256_add_epi32(key1, step1);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    auto* out = reinterpret_cast<__m256i*>(words) + half;
    _mm256_storeu_si256(out, c0[half]);
    _mm256_storeu_si256(out + 2, c1[half]);
    _mm256_storeu_si256(out + 4, c2[half]);
    _mm256_storeu_si256(out + 6, c3[half]);
  }
}
#endif

}  // namespace ortmodule

#include "ops/pair_rate.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

namespace ortmodule {
namespace {

#define TARGET __attribute__((target("avx512bf16,avx512f")))
constexpr int kChains = 12, kSteps = 1000, kRounds = 8;

// Seconds of one round: chains enough to hide the latency of an instruction, whose sums stay in registers.
template <class Step>
TARGET inline __attribute__((always_inline)) double seconds_of(Step step) {
  __m512 sums[kChains];
#pragma GCC unroll 12
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = step(sum);
      asm volatile("" : "+v"(sum));
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TARGET double seconds_of_pairs() {
  const __m512bh one = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  return seconds_of([&](__m512 sum) TARGET { return _mm512_dpbf16_ps(sum, one, one); });
}
TARGET double seconds_of_floats() {
  const __m512 one = _mm512_set1_ps(1);
  return seconds_of([&](__m512 sum) TARGET { return _mm512_fmadd_ps(one, one, sum); });
}
#undef TARGET

}  // namespace

bool has_pairs() {
  static const bool found = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
  }();
  return found;
}

bool pairs_pay() {
  static const bool found = [] {
    if (!has_pairs()) return false;
    double pairs = 1, floats = 1;
    for (int i = 0; i < kRounds; ++i) {
      pairs = std::min(pairs, seconds_of_pairs());
      floats = std::min(floats, seconds_of_floats());
    }
    return pairs < 2 * floats;  // an instruction does the work of two
  }();
  return found;
}

bool has_bfloat16_tiles() {
  static const bool found = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile");
  }();
  return found;
}

}  // namespace ortmodule
#else
namespace ortmodule {

bool has_pairs() { return false; }
bool pairs_pay() { return false; }
bool has_bfloat16_tiles() { return false; }

}  // namespace ortmodule
#endif

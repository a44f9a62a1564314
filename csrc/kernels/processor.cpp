#include "kernels/processor.h"

#if defined(__x86_64__) && defined(__GNUC__)

namespace ortmodule {
namespace {

template <class Ask>
bool asked(Ask ask) {
  __builtin_cpu_init();
  return ask();
}

}  // namespace

bool is_intel() {
  static const bool found = asked([] { return __builtin_cpu_is("intel") != 0; });
  return found;
}

bool has_avx512() {
  static const bool found = asked([] {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
  });
  return found;
}

bool has_split_avx512() {
  static const bool found = has_avx512() && asked([] { return __builtin_cpu_is("amdfam19h") != 0; });
  return found;
}

bool has_pairs() {
  static const bool found =
      has_avx512() && asked([] { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512dq"); });
  return found;
}

bool pairs_pay() { return has_pairs() && !is_intel(); }

bool has_bfloat16_tiles() {
  static const bool found =
      asked([] { return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile"); });
  return found;
}

}  // namespace ortmodule
#else
namespace ortmodule {

bool is_intel() { return false; }
bool has_avx512() { return false; }
bool has_split_avx512() { return false; }
bool has_pairs() { return false; }
bool pairs_pay() { return false; }
bool has_bfloat16_tiles() { return false; }

}  // namespace ortmodule
#endif

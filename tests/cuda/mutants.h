// Mutants of CUDA kernels, all in one library: which of them is there is chosen when it runs (mutations.py).
//
// `a < b` becomes `a < MUTANT_OF_LESS(n) > b`: two comparisons of the same rank, whose first one makes a pair of its
// operand and the mutant's number, and whose second compares. Number n shifts the sign, n + 1 the bound. A barrier
// becomes MUTANT_OF_BARRIER(n, ...). What is reached is noted, so that only those cases run that come by. Not here: how
// sources are rewritten.
#pragma once

#include <atomic>

namespace ortmodule::cuda::mutants {

constexpr int kMost = 4096;

inline std::atomic<int> chosen{-1};
inline std::atomic<char> reached[kMost] = {};

inline bool is(int number) {
  reached[number].store(1, std::memory_order_relaxed);
  return chosen.load(std::memory_order_relaxed) == number;
}

struct Less {
  template <typename A, typename B>
  static bool compare(int n, const A& a, const B& b) {
    return is(n) ? a <= b : is(n + 1) ? a + 1 < b : a < b;
  }
};
struct LessOrEqual {
  template <typename A, typename B>
  static bool compare(int n, const A& a, const B& b) {
    return is(n) ? a < b : is(n + 1) ? a - 1 <= b : a <= b;
  }
};
struct Greater {
  template <typename A, typename B>
  static bool compare(int n, const A& a, const B& b) {
    return is(n) ? a >= b : is(n + 1) ? a - 1 > b : a > b;
  }
};
struct GreaterOrEqual {
  template <typename A, typename B>
  static bool compare(int n, const A& a, const B& b) {
    return is(n) ? a > b : is(n + 1) ? a + 1 >= b : a >= b;
  }
};

template <typename Sign>
struct Comparison {
  int number;
};
template <typename Sign, typename A>
struct WithOperand {
  int number;
  const A& a;
};

template <typename A, typename Sign>
WithOperand<Sign, A> operator<(const A& a, Comparison<Sign> of) {
  return {of.number, a};
}
template <typename Sign, typename A, typename B>
bool operator>(const WithOperand<Sign, A>& left, const B& b) {
  return Sign::compare(left.number, left.a, b);
}

}  // namespace ortmodule::cuda::mutants

#define MUTANT_OF_LESS(n) (::ortmodule::cuda::mutants::Comparison<::ortmodule::cuda::mutants::Less>{n})
#define MUTANT_OF_LESS_OR_EQUAL(n) (::ortmodule::cuda::mutants::Comparison<::ortmodule::cuda::mutants::LessOrEqual>{n})
#define MUTANT_OF_GREATER(n) (::ortmodule::cuda::mutants::Comparison<::ortmodule::cuda::mutants::Greater>{n})
#define MUTANT_OF_GREATER_OR_EQUAL(n) \
  (::ortmodule::cuda::mutants::Comparison<::ortmodule::cuda::mutants::GreaterOrEqual>{n})
#define MUTANT_OF_BARRIER(n, barrier) \
  if (!::ortmodule::cuda::mutants::is(n)) barrier

extern "C" {
__attribute__((visibility("default"), weak)) void mutants_choose(int number) {
  ortmodule::cuda::mutants::chosen = number;
}
// Whether it was reached since it was last asked.
__attribute__((visibility("default"), weak)) int mutants_reached(int number) {
  return ortmodule::cuda::mutants::reached[number].exchange(0);
}
}

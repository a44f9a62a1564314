// A tensor as a step reads and writes it: a run of elements at a time, in the type that the step computes in.
//
// Elements of that type are used where they lie. Others (16-bit ones, states in 8 bits) pass through a scratch of
// kRun elements that stays in the first cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ortmodule {

// A multiple of kStateBlock and of the blocks of random words.
constexpr int64_t kRun = 1024;

enum class Form {
  kPlain,     // elements of `type`
  kSigned,    // 8 bits with a scale a block (eight_bit.h)
  kUnsigned,  // the same for what is never negative
};

struct Column {
  void* data = nullptr;
  at::ScalarType type = at::kFloat;
  Form form = Form::kPlain;
  float* scales = nullptr;

  explicit operator bool() const { return data != nullptr; }
};

// How 16-bit numbers are rounded when they are written: to nearest, or, bfloat16 alone, up with a probability that is
// the part of the way there (stochastic rounding: Gupta et al., Deep Learning with Limited Numerical Precision, 2015).
struct Rounding {
  bool stochastic = false;
  uint64_t seed = 0, stream = 0;
};

// `n` elements from `begin` on, in place where `column` is of T, else in `scratch`. `begin` is a multiple of kRun where
// the column is in 8 bits; n is at most kRun where a scratch is used.
template <typename T>
T* opened(const Column& column, int64_t begin, int64_t n, T* scratch);

// Writes what `opened` gave back to where it came from.
template <typename T>
void close(const Column& column, int64_t begin, int64_t n, const T* values, const Rounding& rounding = {});

// Whether elements are used where they lie.
template <typename T>
bool is_direct(const Column& column);

}  // namespace ortmodule

// Products of fp32 and bfloat16 matrices where torch's BLAS falls short; where that is, choice.h says.
//
// oneDNN's products of bfloat16, which ATen takes, copy and reorder more than these do on Zen 4 and 5; and they take
// its instructions for pairs where those are slow (processor.h): there, and where there are none, panels hold floats.
//
// Each thread copies its part of both operands into panels and meets the others once, at the end. What an element of
// the result is summed up from, and in which order, depends on the inner size alone: neither on the threads nor on the
// other rows. Not here: tiles that fit the caches (tile_product.h), the choice of a kernel (choice.h).
#pragma once

#include <cstdint>
#include <memory>

namespace ortmodule {

// Whether this processor can run packed_product at all: x86-64 with AVX2.
bool has_packed_product();
// Element (i, j) lies at data + i * row + j * column, with any strides.
template <class T>
struct Strided {
  const T* data;
  int64_t row, column;

  Strided from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};
using StridedMatrix = Strided<float>;
using StridedBfloat16 = Strided<uint16_t>;  // as its bits

// c = a b + start, a [m, k], b [k, n], on ATen's threads. c's rows are `ld` floats apart. `start` has the columns of c;
// its rows are `start_row` apart, 0 for a bias; it may be c itself, and null for none. NaN and infinities propagate.
void packed_product(int64_t m, int64_t n, int64_t k, const StridedMatrix& a, const StridedMatrix& b, const float* start,
                    int64_t start_row, float* c, int64_t ld);

// The second factor of products that are computed again and again, b [k, n], in panels: a product reads them as they
// are.
class PackedFactor {
 public:
  PackedFactor(int64_t n, int64_t k, const StridedMatrix& b);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  const float* panels() const { return panels_.get(); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  int64_t n_, k_;
  std::unique_ptr<float[], Free> panels_;
};

// The same as with b itself, to the bit.
void packed_product(int64_t m, const StridedMatrix& a, const PackedFactor& b, const float* start, int64_t start_row,
                    float* c, int64_t ld);

// The same of bfloat16. Sums are fp32 and are rounded once, when all is summed up; k > 0, and `start` is a bias of
// floats or null. `pairs`: two neighbors in what is summed over to an instruction, which the processor must have.
void packed_product(int64_t m, int64_t n, int64_t k, const StridedBfloat16& a, const StridedBfloat16& b,
                    const float* start, uint16_t* c, int64_t ld, bool pairs);

}  // namespace ortmodule

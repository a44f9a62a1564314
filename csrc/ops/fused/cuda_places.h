// What a generated kernel's source is written with (Note [Generated kernels]): types, literals, and where its numbers
// are, with the arithmetic of elements' places.
#pragma once

#include <string>
#include <vector>

#include "ops/fused/cuda_source.h"

namespace ortmodule {

const char* element_name(DType type);
std::string literal(double number);  // a float

class CudaPlaces {
 public:
  CudaPlaces(const FusedProgram& program, const CudaVariant& variant);

  int count() const { return count_; }
  // Of the two words of the k-th instruction, a dropout that draws.
  int words(int k) const { return words_[k]; }

  static std::string at(int place);
  // Of all axes of an input but the first.
  std::string size(int i, int axis) const { return at(inputs_[i] + axis - 1); }
  std::string stride(int i, int axis) const { return at(inputs_[i] + 2 * (axes(i) - 1) + axis); }

  // n / size and n % size; `divider`: of the size, see divided() in cuda/generated.cuh.
  int divider(int i, int axis) const { return inputs_[i] + axes(i) - 2 + axis; }
  std::string quotient(const std::string& n, const std::string& size, int divider) const;
  std::string remainder(const std::string& n, const std::string& size, int divider) const;

 private:
  int axes(int i) const { return variant_.inputs[i].axes; }

  const CudaVariant& variant_;
  std::vector<int> inputs_, words_;
  int count_ = 0;
};

constexpr int kWidthDivider = 3;  // its place

}  // namespace ortmodule

#include "ops/fused/cuda_places.h"

#include <cmath>
#include <cstdio>

#include "base/status.h"

namespace ortmodule {

const char* element_name(DType type) {
  switch (type) {
    case DType::kFloat16:
      return "Half";
    case DType::kBFloat16:
      return "BFloat16";
    case DType::kBool:
      return "bool";
    default:
      return "float";
  }
}

std::string literal(double number) {
  const auto value = static_cast<float>(number);
  if (std::isnan(value)) return "__builtin_nanf(\"\")";
  if (std::isinf(value)) return value > 0 ? "__builtin_inff()" : "(-__builtin_inff())";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  std::string made(text);
  if (made.find_first_of(".e") == std::string::npos) made += ".0";
  return value < 0 || std::signbit(value) ? "(" + made + "f)" : made + "f";
}

CudaPlaces::CudaPlaces(const FusedProgram& program, const CudaVariant& variant) : variant_(variant) {
  count_ = kWidthDivider + 1;
  for (int i = 0; i < program.inputs; ++i) {
    inputs_.push_back(count_);
    if (!program.is_state(i) && !variant.inputs[i].single) count_ += 3 * axes(i) - 2;
  }
  for (const Instruction& i : program.code) {
    words_.push_back(count_);
    if (draws(i)) count_ += 2;
  }
}

std::string CudaPlaces::at(int place) { return str("static_cast<Index>(numbers.at[", place, "])"); }

std::string CudaPlaces::quotient(const std::string& n, const std::string& size, int divider) const {
  return variant_.wide ? n + " / " + size : str("divided(", n, ", numbers.at[", divider, "])");
}

std::string CudaPlaces::remainder(const std::string& n, const std::string& size, int divider) const {
  return str(n, " - ", quotient(n, size, divider), " * ", size);
}

}  // namespace ortmodule

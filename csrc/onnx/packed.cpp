#include "onnx/packed.h"

namespace ortmodule {

bool is_packed(DType dtype) {
  const size_t bits = dtype_bits(dtype);
  return bits != 0 && bits < 8;
}

bool packed_size(DType dtype, uint64_t elements, uint64_t& bytes) {
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(dtype)), &bytes)) return false;
  bytes = bytes / 8 + (bytes % 8 != 0);
  return true;
}

std::string unpack_elements(std::string_view packed, DType dtype, size_t elements) {
  const size_t width = dtype_bits(dtype);
  const unsigned mask = (1u << width) - 1;
  const bool is_signed = dtype == DType::kInt4 || dtype == DType::kInt2;
  const unsigned sign = is_signed ? 1u << (width - 1) : 0;
  std::string out(elements, '\0');
  unsigned pending = 0;  // bits that are read and not yet handed out, the next one lowest
  size_t have = 0, at = 0;
  for (char& element : out) {
    if (have < width) {
      pending |= static_cast<unsigned>(static_cast<unsigned char>(packed[at++])) << have;
      have += 8;
    }
    element = static_cast<char>(((pending & mask) ^ sign) - sign);
    pending >>= width;
    have -= width;
  }
  return out;
}

std::string pack_elements(std::string_view bytes, DType dtype) {
  const size_t width = dtype_bits(dtype);
  const unsigned mask = (1u << width) - 1;
  std::string out;
  unsigned pending = 0;
  size_t have = 0;
  for (const char element : bytes) {
    pending |= (static_cast<unsigned char>(element) & mask) << have;
    for (have += width; have >= 8; have -= 8, pending >>= 8) out += static_cast<char>(pending & 0xff);
  }
  if (have) out += static_cast<char>(pending);
  return out;
}

}  // namespace ortmodule

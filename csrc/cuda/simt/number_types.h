// The two 16-bit types of CUDA on the host: storage and rounding to nearest, ties to even. Kernels compute in float.
#pragma once

#include <bit>
#include <cstdint>

namespace ortmodule::cuda {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

inline float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline float to_float(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = x.bits & 0x7FFF;
  if (rest >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000 | (rest & 0x3FF) << 13);
  if (rest >= 0x400) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000));
  const float small = static_cast<float>(rest) * 0x1p-24f;
  return sign ? -small : small;
}

inline Half to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return {static_cast<uint16_t>(sign | 0x7E00)};
  if (size >= 0x477FF000) return {static_cast<uint16_t>(sign | 0x7C00)};  // above the largest, rounded
  if (size < 0x38800000) {                                                // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(size) + 0.5f;               // adding 0.5 rounds at 2^-24
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3F000000))};
  }
  return {static_cast<uint16_t>(sign | ((size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13))};
}

}  // namespace ortmodule::cuda

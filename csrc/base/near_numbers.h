// Numbers of attributes (strides, pads, dilations): those of a broken file may be as large as 64 bits allow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace ortmodule {

// Whether products of two of them, and sums with any tensor's sizes, stay within 64 bits.
inline bool are_near(std::span<const int64_t> numbers) {
  constexpr int64_t kFar = int64_t{1} << 31;
  return std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return -kFar < n && n < kFar; });
}

}  // namespace ortmodule

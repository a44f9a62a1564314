// Numbers for tests of products: between -1 and 1, no two rows alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace ortmodule {

inline std::vector<float> values(int64_t n, float step) {
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = std::sin(step * static_cast<float>(i + 1));
  return out;
}

}  // namespace ortmodule

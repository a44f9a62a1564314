// Over which axes gradients of broadcast operands are summed; the rule and the kernel of BroadcastGradientArgs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace ortmodule {

// For operands of shapes a and b: the axes of the result that each lacks or has repeated, the last one first. Where
// both sizes of an axis are other than one they should be equal; `clash` gets the first axis where they are not.
inline std::array<std::vector<int64_t>, 2> broadcast_axes(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                                                          int64_t& clash) {
  const std::vector<int64_t>* shapes[] = {&a, &b};
  const size_t rank = std::max(a.size(), b.size());
  std::array<std::vector<int64_t>, 2> axes;
  clash = -1;
  for (size_t axis = rank; axis-- > 0;) {
    int64_t sizes[2];
    bool absent[2];
    for (size_t side = 0; side < 2; ++side) {
      const size_t missing = rank - shapes[side]->size();
      absent[side] = axis < missing;
      sizes[side] = absent[side] ? 1 : (*shapes[side])[axis - missing];
    }
    if (sizes[0] != 1 && sizes[1] != 1 && sizes[0] != sizes[1]) clash = static_cast<int64_t>(axis);
    for (size_t side = 0; side < 2; ++side)
      if (absent[side] || (sizes[side] == 1 && sizes[1 - side] != 1)) axes[side].push_back(static_cast<int64_t>(axis));
  }
  return axes;
}

}  // namespace ortmodule

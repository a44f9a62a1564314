#include "plan/gradient_segments.h"

#include <algorithm>
#include <numeric>

namespace ortmodule {

std::vector<size_t> gradient_segments(const std::vector<size_t>& ready, const std::vector<int64_t>& bytes,
                                      int64_t least_bytes) {
  std::vector<size_t> order(ready.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ready[a] < ready[b]; });
  std::vector<size_t> segment(ready.size(), 0);
  size_t current = 0;
  int64_t held = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && held >= least_bytes && ready[order[i]] != ready[order[i - 1]]) {
      ++current;
      held = 0;
    }
    segment[order[i]] = current;
    held += bytes[order[i]];
  }
  return segment;
}

}  // namespace ortmodule

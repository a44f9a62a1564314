#include "autograd/result_order.h"

#include <algorithm>
#include <cstdint>
#include <set>

namespace ortmodule {

bool ResultOrder::any() const {
  return std::any_of(results.begin(), results.end(), [](const Result& one) { return !one.below.empty(); });
}

ResultOrder ResultOrder::of(const std::vector<std::pair<size_t, size_t>>& pairs, std::vector<size_t> sequence,
                            size_t count) {
  ResultOrder order;
  order.results.resize(count);
  std::vector<size_t> place(count, SIZE_MAX);
  for (size_t i = 0; i < sequence.size(); ++i) place[sequence[i]] = i;
  for (const auto& [result, inner] : std::set<std::pair<size_t, size_t>>(pairs.begin(), pairs.end()))
    if (place[result] != SIZE_MAX && place[inner] < place[result]) order.results[result].below.push_back(inner);
  order.sequence = std::move(sequence);

  std::vector<size_t> leads(count, 0);
  for (Result& one : order.results) {
    for (size_t inner : one.below) {
      const bool behind = std::any_of(one.below.begin(), one.below.end(), [&](size_t k) {
        const std::vector<size_t>& below = order.results[k].below;
        return std::find(below.begin(), below.end(), inner) != below.end();
      });
      if (!behind) one.next.push_back(inner);
    }
    for (size_t inner : one.next) ++leads[inner];
  }
  for (size_t k = 0; k < count; ++k) order.results[k].gathers = leads[k] > 1;
  // The first one in the sequence is the only one that may be below all others.
  const auto is_above = [&](size_t k) {
    const std::vector<size_t>& below = order.results[k].below;
    return std::find(below.begin(), below.end(), order.sequence.front()) != below.end();
  };
  if (order.sequence.size() > 1 && std::all_of(order.sequence.begin() + 1, order.sequence.end(), is_above))
    order.deepest = order.sequence.front();
  return order;
}

}  // namespace ortmodule

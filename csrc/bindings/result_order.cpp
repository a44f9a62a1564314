#include "bindings/result_order.h"

#include <algorithm>
#include <set>

namespace ortmodule {

bool ResultOrder::any() const {
  return std::any_of(results.begin(), results.end(), [](const Result& one) { return !one.below.empty(); });
}

ResultOrder ResultOrder::of(const std::vector<std::pair<size_t, size_t>>& pairs, const std::vector<char>& seen) {
  ResultOrder order;
  order.results.resize(seen.size());
  const std::set<std::pair<size_t, size_t>> known(pairs.begin(), pairs.end());
  for (const auto& [result, inner] : known)
    if (result != inner && seen[result] && seen[inner] && !known.count({inner, result}))
      order.results[result].below.push_back(inner);

  std::vector<size_t> leads(seen.size(), 0);
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
  for (size_t k = 0; k < seen.size(); ++k) {
    order.results[k].gathers = leads[k] > 1;
    if (seen[k]) order.sequence.push_back(k);
  }
  std::stable_sort(order.sequence.begin(), order.sequence.end(), [&](size_t a, size_t b) {
    return order.results[a].below.size() < order.results[b].below.size();
  });
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

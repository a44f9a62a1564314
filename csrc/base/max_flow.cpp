#include "base/max_flow.h"

#include <algorithm>

namespace ortmodule {

size_t MaxFlow::add_vertex() {
  out_.emplace_back();
  return out_.size() - 1;
}

void MaxFlow::add_edge(size_t from, size_t to, double capacity) {
  if (capacity <= 0) return;
  out_[from].push_back(edges_.size());
  edges_.push_back({to, capacity});
  out_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
  if (capacity < kUnbounded) tolerance_ = std::max(tolerance_, capacity * 1e-12);
}

bool MaxFlow::find_levels(size_t source, size_t sink) {
  level_.assign(out_.size(), -1);
  std::vector<size_t> queue{source};
  level_[source] = 0;
  for (size_t i = 0; i < queue.size(); ++i) {
    for (size_t e : out_[queue[i]]) {
      const size_t to = edges_[e].to;
      if (level_[to] >= 0 || edges_[e].left <= tolerance_) continue;
      level_[to] = level_[queue[i]] + 1;
      queue.push_back(to);
    }
  }
  return level_[sink] >= 0;
}

// One path of the level graph from source to sink; 0 when none is left. Without recursion: paths can be long.
double MaxFlow::augment(size_t source, size_t sink) {
  std::vector<size_t> path;
  size_t at = source;
  while (at != sink) {
    size_t& next = next_[at];
    while (next < out_[at].size()) {
      const Edge& edge = edges_[out_[at][next]];
      if (edge.left > tolerance_ && level_[edge.to] == level_[at] + 1) break;
      ++next;
    }
    if (next < out_[at].size()) {
      path.push_back(out_[at][next]);
      at = edges_[path.back()].to;
    } else if (path.empty()) {
      return 0;
    } else {  // a dead end: step back and leave its edge behind
      at = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[at];
    }
  }
  double amount = kUnbounded;
  for (size_t e : path) amount = std::min(amount, edges_[e].left);
  for (size_t e : path) {
    edges_[e].left -= amount;
    edges_[e ^ 1].left += amount;
  }
  return amount;
}

double MaxFlow::solve(size_t source, size_t sink) {
  double total = 0;
  while (find_levels(source, sink)) {
    next_.assign(out_.size(), 0);
    while (const double amount = augment(source, sink)) total += amount;
  }
  return total;
}

}  // namespace ortmodule

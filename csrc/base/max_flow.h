// Maximum flow and minimum cut of a directed graph with real capacities (Dinic, Soviet Math. Dokl. 11, 1970).
#pragma once

#include <cstddef>
#include <vector>

namespace ortmodule {

class MaxFlow {
 public:
  static constexpr double kUnbounded = 1e300;

  explicit MaxFlow(size_t vertices) : out_(vertices) {}
  size_t add_vertex();
  // Parallel edges are fine; a capacity of 0 or less adds nothing.
  void add_edge(size_t from, size_t to, double capacity);

  // After it, on_source_side(v) tells the side of a minimum cut that is nearest to the source. Call it once.
  double solve(size_t source, size_t sink);
  bool on_source_side(size_t vertex) const { return level_[vertex] >= 0; }

 private:
  struct Edge {
    size_t to;
    double left;  // capacity that is left; the reverse edge is at index ^ 1
  };
  bool find_levels(size_t source, size_t sink);
  double augment(size_t source, size_t sink);

  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> out_;
  std::vector<int> level_;
  std::vector<size_t> next_;
  double tolerance_ = 0;
};

}  // namespace ortmodule

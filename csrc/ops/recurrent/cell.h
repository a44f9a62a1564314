// What the recurrent layers share: activation functions by name, and the walk over time and directions.
//
// A cell maps (the input's part of the gates [batch, gates*hidden], the previous states) to the next states. Everything
// is out of place, so that autograd can differentiate the walk.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

using Activation = std::function<at::Tensor(const at::Tensor&)>;

// The functions of all directions, `defaults.size()` per direction, each behind the clip. Throws kInvalidGraph for
// names that the standard does not have.
std::vector<Activation> activations_of(const Node& node, const std::vector<std::string>& defaults);

// One direction's weights. `bias` and `peephole` are undefined where the node has none.
struct DirectionWeights {
  at::Tensor w, r, bias, peephole;
  const Activation* functions;
};
using States = std::vector<at::Tensor>;
using Cell = std::function<States(const DirectionWeights&, const at::Tensor& gates, const States&)>;

struct RecurrentLayer {
  RecurrentLayer(const Node& node, int64_t gates, size_t states, const std::vector<std::string>& defaults);

  // inputs: X, W, R, B, sequence_lens, initial states..., and P last where `gates` is 4. -> Y, last states...
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const Cell& cell) const;

  std::string name;
  int64_t gates;
  size_t state_count;
  bool forward, reverse, batch_first;
  std::vector<Activation> functions;
};

}  // namespace ortmodule

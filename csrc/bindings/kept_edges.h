// Autograd's edges to the leaves of a session, kept from step to step.
//
// Note [Kept accumulators]
// A leaf knows its AccumulateGrad by a weak pointer only. In eager every forward makes the accumulators anew and every
// backward frees them: some 0.6 us per parameter and step. A session keeps those of the leaves that come again, on the
// CPU alone: an accumulator remembers the stream it was made on. What others may see is as before, because
// - how many hold an accumulator tells whether it is watched, and the sessions of a process hold it once, together;
// - a leaf whose accumulator was reset (set_data with another type does so) or replaced is noticed at the next step;
// - an accumulator whose sizes are not its leaf's is never kept, and is replaced;
// - a call of another kind, or one that runs in PyTorch, lets everything go first (release).
// Not here: what a backward does with the edges (autograd_node.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <vector>

namespace ortmodule {

class KeptAccumulator;

// One per gradient of a session; null where none is kept. Shared with the steps that use it.
using KeptAccumulators = std::vector<std::shared_ptr<const KeptAccumulator>>;

class KeptEdges {
 public:
  // The edges to inputs[places[k]] where wanted[k] and it requires a gradient; and what is kept of them. leaves[k] is
  // the accumulator's own tensor, null where the edge leads to another node.
  std::shared_ptr<const KeptAccumulators> find(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& places,
                                               const std::vector<bool>& wanted, torch::autograd::edge_list& edges,
                                               std::vector<const at::Tensor*>& leaves);
  void release();

 private:
  std::mutex mutex_;
  std::shared_ptr<const KeptAccumulators> kept_;
  std::vector<const c10::TensorImpl*> seen_;  // by the step before; never dereferenced
  std::vector<int> losses_;                   // how often what was kept was of no use
};

}  // namespace ortmodule

// Autograd's edges to the leaves of a session, kept from step to step.
//
// Note [Kept accumulators]
// A leaf knows its AccumulateGrad by a weak pointer only. In eager every forward makes the accumulators anew and every
// backward frees them: some 0.6 us per parameter and step. A session keeps those of the leaves that come again, on the
// CPU alone: an accumulator remembers the stream it was made on. What others may see is as before, because
// - how many hold an accumulator tells whether it is watched, and the sessions of a process hold it once, together;
// - a leaf whose accumulator was reset (set_data with another type does so) or replaced is noticed at the next step;
// - an accumulator whose sizes are not its leaf's is never kept, and is replaced; where results of calls before are
//   alive, whose histories lead to it, eager goes on with it, raises in backward or gives a gradient of the old sizes,
//   and so PyTorch runs the call;
// - a call of another kind, or one that runs in PyTorch, lets everything go first (release).
//
// Note [Early accumulators]
// A step walks over all of them, and a capture leaves the heap full of small holes: made after it, a third of 200
// accumulators lay in pages of their own, and imports leave some, too. So a call that is captured has them made before,
// side by side (EarlyAccumulators).
//
// Note [Idle edges]
// The list of edges itself, with its holds on the accumulators, comes back when a step's node goes and serves the next
// step. In between it is one more holder of each. It is therefore one list for the whole process: who makes edges or
// counts holders takes it, so that it is known whose it is, and drops it if it is another session's.
// Not here: what a backward does with the edges (module_backward.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "ortmodule/export.h"

namespace ortmodule {

class KeptAccumulator;

// One per gradient of a session; null where none is kept. Shared with the steps that use it.
using KeptAccumulators = std::vector<std::shared_ptr<const KeptAccumulator>>;

// The edges of a step, by gradient; leaves[k] is the accumulator's own tensor, null where edge k leads to another node.
// `impls`: the leaves of kept accumulators, for the next step; not where the edges are some of the step's. `hooked`: of
// how many leaves a user hears by hooks on the leaf itself.
struct StepEdges {
  torch::autograd::edge_list edges;
  std::vector<const at::Tensor*> leaves;
  std::vector<const c10::TensorImpl*> impls;
  std::shared_ptr<const KeptAccumulators> kept;
  size_t hooked = 0;
};

// Makes the accumulators of these leaves, and has them be kept until a session keeps them itself, or this goes.
class EarlyAccumulators {
 public:
  ORTMODULE_API explicit EarlyAccumulators(const std::vector<at::Tensor>& leaves);

 private:
  KeptAccumulators kept_;
};

class KeptEdges {
 public:
  ~KeptEdges() { release(); }
  // The edges to inputs[places[k]] where wanted[k] and it requires a gradient.
  StepEdges find(const std::vector<at::Tensor>& inputs, const std::vector<size_t>& places,
                 const std::vector<bool>& wanted);
  // Takes edges that no node uses any more, with or without the GIL.
  void give_back(StepEdges edges) noexcept;
  ORTMODULE_API void release();

  // While it lives nobody's edges lie idle but those in `edges`, which the steps of `kept` left.
  class TakenIdle {
   public:
    TakenIdle(KeptEdges& owner, const std::shared_ptr<const KeptAccumulators>& kept);
    ~TakenIdle() { owner_.give_back(std::move(edges_)); }
    TakenIdle(const TakenIdle&) = delete;
    TakenIdle& operator=(const TakenIdle&) = delete;
    // How many of the holders of edge k's accumulator this is.
    size_t holders(size_t k) const { return k < edges_.edges.size() && edges_.edges[k].is_valid() ? 1 : 0; }

   private:
    KeptEdges& owner_;
    StepEdges edges_;
  };

 private:
  // What lies idle if it is this one's, else nothing; the rest is dropped.
  StepEdges take_idle();

  std::mutex mutex_;
  std::shared_ptr<const KeptAccumulators> kept_;
  std::atomic<const KeptAccumulators*> current_{nullptr};  // kept_, for who may not wait for the lock
  std::vector<const c10::TensorImpl*> seen_;               // by the step before; never dereferenced
  std::vector<int> losses_;                                // how often what was kept was of no use
};

}  // namespace ortmodule

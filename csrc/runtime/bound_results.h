// Results in memory that the caller has bound: written there by the node that makes them, or copied there once.
//
// Note [Bound results]
// Kernels make their results with ATen, which allocates. A run with bound buffers notes, for each result of
// CpuAllocationScope::kMinimumBytes or more, which allocation became its memory: the k-th of a step. The next run of
// the same plan is given the buffer at that place, so that the node (or a chain of nodes that write over their operand)
// writes there; nothing is known of kernels for it. A guess that turns out wrong (other sizes, another kernel) costs a
// copy and is noted anew. Nothing is placed where it could be seen: a buffer that meets an input or another buffer in
// memory, one of another type, order of elements or known size than the result, nodes of libraries and of torch's
// dispatcher, which may keep what they allocate (KernelDef::foreign), runs that somebody observes and nodes side by
// side. What is copied is copied after the last node has run, so that a buffer may be an input's memory.
// Not here: who may bind what (session/session.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/dim.h"
#include "device/cpu_allocations.h"
#include "graph/graph.h"

namespace ortmodule {

// The buffers of a run by output, undefined where there is none; and what became of them.
struct ResultBuffers {
  std::vector<at::Tensor> buffers;
  std::vector<char> copied{};  // 1: the result was copied into its buffer
};

// Where the results of a plan were allocated in earlier runs; shared by its runs.
class ResultPlaces {
 public:
  struct Place {
    size_t step;
    uint32_t allocation;  // of those that the step asked for
    std::vector<int64_t> sizes;
  };
  explicit ResultPlaces(size_t outputs) : places_(outputs), kept_(outputs, 0) {}
  std::optional<Place> find(size_t output) const;
  void note(size_t output, std::optional<Place> place);
  // Somebody kept the memory of a result beyond its run: it is copied from now on.
  void refuse(size_t output);

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Place>> places_;
  std::vector<char> kept_;
};

// Serves one run: the buffers at their places, all else as the server behind it does.
class BoundResults final : public CpuAllocationServer {
 public:
  // Null where no buffer can take a result. `types`: what is known of the outputs; `inputs`: what the run reads.
  static std::shared_ptr<BoundResults> make(const ResultBuffers& results, const std::vector<TypeInfo>& types,
                                            const SymbolTable& symbols, const std::vector<at::Tensor>& inputs,
                                            ResultPlaces& places);

  // What serves everything else; may be null.
  void serve_before(std::shared_ptr<CpuAllocationServer> next) { next_ = std::move(next); }
  // The next step begins; `may_place`: its kernel keeps nothing that it allocates.
  void step(size_t index, bool may_place) {
    step_ = index;
    may_place_ = may_place;
    allocation_ = 0;
  }
  // What tells runs with other places apart.
  void add_to(std::vector<int64_t>& key) const;

  // Takes the results that lie in their buffers; `outputs` hold the buffers themselves then. Views of these that are
  // outputs without a buffer get memory of their own.
  void take(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& buffers);
  // Notes where the others were made, before they are copied.
  void learn(const std::vector<at::Tensor>& outputs);
  // When the run holds none of them any more.
  void close();

  Answer allocate(size_t bytes) override;
  void placed(void* data, uint32_t tag) noexcept override;
  void freed(void* data, bool own, uint32_t tag) noexcept override;

 private:
  struct Bound {
    size_t output;
    at::Tensor buffer;
    std::optional<ResultPlaces::Place> place;
    bool served = false, gone = false, taken = false;
  };
  // A block that this was asked for.
  struct Block {
    void* data = nullptr;
    size_t bytes = 0, step = 0;
    uint32_t allocation = 0;
    Bound* bound = nullptr;  // whose buffer it is
    bool known = false;      // to the server behind this one, by `tag`
    uint32_t tag = 0;
  };

  ResultPlaces* places_ = nullptr;
  std::vector<Bound> bound_;
  std::shared_ptr<CpuAllocationServer> next_;
  std::mutex mutex_;
  std::vector<Block> blocks_;
  size_t step_ = 0;
  uint32_t allocation_ = 0;
  bool may_place_ = false, over_ = false;
};

// The outputs of a run that keeps nothing: each in its buffer, where it has one, the others in memory of their own
// (runtime/result_memory.h); `bound` may be null. Throws kInvalidArgument naming the output whose buffer has another
// type or shape, before any is copied.
void place_results(std::vector<at::Tensor>& outputs, ResultBuffers& results, BoundResults* bound,
                   const std::vector<std::string>& names);

}  // namespace ortmodule

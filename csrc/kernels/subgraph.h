// What a kernel with a subgraph may ask of the runtime: run it.
//
// Kernels know no executor (runtime/ is behind ops/), so the runtime registers how a subgraph is prepared. That happens
// once per node, when its kernel is made. Types are known by then: resolve() has inferred them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

class KernelContext;

class Subgraph {
 public:
  virtual ~Subgraph() = default;
  // One value per graph output for one per graph input. A value that the caller moves in and nobody else holds may be
  // overwritten.
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const = 0;
  // The sizes that output `output` would have for these inputs; 0 where only a run tells.
  virtual std::vector<int64_t> output_sizes(const std::vector<at::Tensor>& inputs, size_t output) const = 0;
};

using SubgraphFactory = std::shared_ptr<const Subgraph> (*)(std::shared_ptr<const Graph> graph);

// The runtime's; called by a static constructor there.
void set_subgraph_factory(SubgraphFactory factory);
std::shared_ptr<const Subgraph> make_subgraph(std::shared_ptr<const Graph> graph);

// A subgraph of a node together with where its captured inputs come from (Note [Captured values]).
class BodyCall {
 public:
  // `formals`: how many of the subgraph's inputs the kernel gives itself, in front; `named`: further ones that it
  // gives, wherever they stand.
  BodyCall(const Node& node, const char* attribute, size_t formals, const std::vector<std::string>& named = {});

  // `values` holds the formal inputs, `named` the named ones; the captured ones are read from the node's inputs.
  std::vector<at::Tensor> run(const KernelContext& c, std::vector<at::Tensor> values,
                              const std::vector<at::Tensor>& named = {}) const;
  size_t output_count() const { return outputs_.size(); }
  // The stack of no outputs at all, for the inputs that a first run would get.
  at::Tensor empty_stack(const KernelContext& c, std::vector<at::Tensor> values, size_t output) const;

 private:
  std::shared_ptr<const Subgraph> subgraph_;
  std::vector<at::Tensor> with_others(const KernelContext& c, std::vector<at::Tensor> values,
                                      const std::vector<at::Tensor>& named) const;

  size_t formals_;
  struct Source {
    bool named;
    size_t index;  // of the node's input, or among the named values
  };
  std::vector<Source> others_;  // of the subgraph's inputs behind the formal ones
  std::vector<TypeInfo> outputs_;
};

}  // namespace ortmodule

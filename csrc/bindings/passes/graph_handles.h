// The graph in the hands of a pass written in Python: Graph, Node and NodeArg, which die with the pass.
//
// A handle is a pointer and a flag that all handles of one run share. After the run each use is an error, never a look
// at freed memory; what the pass has removed is known by its id. Edits are counted, so that a pass need not
// say whether it changed anything.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_set>

#include "graph/graph.h"

namespace ortmodule {

// One run of a pass over one graph.
struct PassHandles {
  Graph* graph;  // null: the run is over
  std::string pass;
  std::string stage;  // "forward", "joint"
  size_t edits = 0;
  std::unordered_set<size_t> removed_nodes{}, removed_values{};  // ids

  Graph& get() const;
};

// What the pass is called with. Call with the GIL held.
pybind11::object graph_handle(const std::shared_ptr<PassHandles>& handles);

void register_graph_handles(pybind11::module_& m);

}  // namespace ortmodule

// Runs the subgraphs of If, Loop, Scan and SequenceMap: a plan and an executor over the body, prepared once per node.
//
// Kernels reach it through kernels/subgraph.h. A body's symbolic sizes are bound from its inputs at each run; its
// constants are loaded once. Temporaries of a body come from torch's allocator: which iterations run is not known
// before.
#pragma once

#include <c10/core/Device.h>

namespace ortmodule {

// Kernel factories see a node alone; while one of these lives, the subgraphs they prepare are for `device`.
class SubgraphDeviceScope {
 public:
  explicit SubgraphDeviceScope(c10::Device device);
  ~SubgraphDeviceScope();
  SubgraphDeviceScope(const SubgraphDeviceScope&) = delete;
  SubgraphDeviceScope& operator=(const SubgraphDeviceScope&) = delete;

 private:
  c10::Device before_;
};

}  // namespace ortmodule

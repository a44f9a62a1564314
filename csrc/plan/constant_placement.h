// On a device other than the CPU: which constants lie in host memory.
//
// Sizes, axes and ratios are read by the host, and what is computed of them alone stays there, since operators run
// where their operands are. A number beside a tensor may lie on either side: ATen takes it from the host without a
// transfer. Everything else must lie beside the device's tensors. Not here: where results go (the kernels).
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortmodule {

class ConstantPlacement {
 public:
  enum class Place { kHost, kDevice, kEither };

  explicit ConstantPlacement(const Graph& graph);
  // Where `use` needs the constant `value`.
  Place needed(const NodeArg& value, const Use& use) const;
  // Whether the constant lies on the host: where no use needs it on the device.
  bool on_host(const NodeArg& value) const;

 private:
  std::vector<char> on_host_;  // by value: results that are in host memory
};

// Gives each constant that is needed on both sides a copy for the host, in bodies too.
void separate_constants(Graph& graph);

}  // namespace ortmodule

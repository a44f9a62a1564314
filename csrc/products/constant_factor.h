// A weight that is the same at each run of a session: what its products read is made of it once.
//
// The panels of a weight are shared by all nodes that multiply by it, in whatever plan, and live as long as one of
// them. Not here: training, whose weights are inputs and change at each step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "graph/graph.h"
#include "products/packed_product.h"

namespace ortmodule {

class ConstantFactor {
 public:
  // Of input `i` of a node; null where that is no constant, nor a Transpose of one.
  static std::shared_ptr<ConstantFactor> of(const Node& node, size_t i);

  // The panels of b [k, n], made at the first call; null where b is not the matrix of that call (an initializer that is
  // given at a run), or no plain matrix of floats on the CPU.
  const PackedFactor* panels(const at::Tensor& b);

 private:
  struct Packed;
  static std::shared_ptr<const Packed> shared(const at::Tensor& b);

  std::once_flag once_;
  std::shared_ptr<const Packed> packed_;
};

}  // namespace ortmodule

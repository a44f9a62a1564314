// The generator behind a random operator: torch's default one, or the node's own where it has the attribute `seed`.
//
// A node's own generator is seeded when the kernel is made and goes on from run to run. It lives on the CPU, so that a
// seed gives the same numbers on every device.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <bit>
#include <optional>

#include "graph/graph.h"

namespace ortmodule {

class Seeded {
 public:
  explicit Seeded(const Node& node) {
    // A float's bits: seeds that differ after the point differ.
    if (node.find_attribute("seed"))
      generator_ = at::detail::createCPUGenerator(std::bit_cast<uint64_t>(node.get_float("seed", 0)));
  }

  // A new tensor that draw(tensor, generator) fills.
  template <typename Draw>
  at::Tensor sized(c10::IntArrayRef sizes, const at::TensorOptions& options, Draw draw) const {
    at::Tensor t = at::empty(sizes, generator_ ? options.device(c10::kCPU) : options);
    draw(t, generator_);
    return t.to(options.device());
  }

  // The same in x's sizes; from torch's generator also in x's memory order, as PyTorch's randn_like draws.
  template <typename Draw>
  at::Tensor like(const at::Tensor& x, at::ScalarType type, Draw draw) const {
    if (generator_) return sized(x.sizes(), x.options().dtype(type), draw);
    at::Tensor t = at::empty_like(x, x.options().dtype(type));
    draw(t, generator_);
    return t;
  }

  const std::optional<at::Generator>& generator() const { return generator_; }

 private:
  std::optional<at::Generator> generator_;
};

}  // namespace ortmodule

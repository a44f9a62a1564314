// Floating-point lists that kernels read on the host: scales, regions, thresholds. See host_values.h for integers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "graph/graph.h"
#include "kernels/kernel_context.h"

namespace ortmodule {

class HostDoubles {
 public:
  HostDoubles(const Node& node, size_t input) : input_(input), present_(node.input(input) != nullptr) {
    const NodeArg* value = node.input(input);
    if (value && value->constant()) constant_ = value->constant()->to_doubles();
  }

  // The list of this run, empty when the input is absent.
  std::vector<double> read(const KernelContext& c) const {
    if (constant_) return *constant_;
    if (!present_) return {};
    const at::Tensor t = c.in(input_).to(c10::kCPU, at::kDouble).contiguous();
    const double* data = t.const_data_ptr<double>();
    return std::vector<double>(data, data + t.numel());
  }

  // A one-element list as a number; `fallback` when the input is absent or empty.
  double value(const KernelContext& c, double fallback) const {
    const std::vector<double> all = read(c);
    return all.empty() ? fallback : all[0];
  }

 private:
  size_t input_;
  bool present_;
  std::optional<std::vector<double>> constant_;
};

}  // namespace ortmodule

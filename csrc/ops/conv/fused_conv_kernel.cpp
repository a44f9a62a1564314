// Kernels of FusedConv and its gradient.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include <cmath>
#include <functional>

#include "base/status.h"
#include "kernels/rerun_kernel.h"
#include "ops/conv/convolve.h"

namespace ortmodule {
namespace {

using Activation = std::function<at::Tensor(const at::Tensor&)>;

Activation activation_of(const Node& node) {
  const std::string name = node.get_string("activation", "");
  std::vector<double> given;
  if (const AttributeValue* value = node.find_attribute("activation_params"))
    given = std::get<std::vector<double>>(*value);
  const auto number = [&](size_t i, double fallback) { return i < given.size() ? given[i] : fallback; };
  const double first = number(0, name == "LeakyRelu"     ? 0.01
                                 : name == "HardSigmoid" ? 0.2
                                                         : -INFINITY),
               second = number(1, name == "HardSigmoid" ? 0.5 : INFINITY);
  if (name == "Relu") return [](const at::Tensor& x) { return at::relu(x); };
  if (name == "Sigmoid") return [](const at::Tensor& x) { return at::sigmoid(x); };
  if (name == "Tanh") return [](const at::Tensor& x) { return at::tanh(x); };
  if (name == "LeakyRelu") return [=](const at::Tensor& x) { return at::leaky_relu(x, first); };
  if (name == "Clip") return [=](const at::Tensor& x) { return at::clamp(x, first, second); };
  if (name == "HardSigmoid")
    return [=](const at::Tensor& x) { return at::hardtanh(at::add(at::mul(x, first), second), 0, 1); };
  ORTMODULE_CHECK(name.empty(), kUnsupported, node.describe(), ": no activation is called '", name,
                  "'; Relu, Sigmoid, Tanh, LeakyRelu, Clip and HardSigmoid are");
  return {};
}

TensorFunction fused_conv(const Node& node) {
  const bool relu = node.get_string("activation", "") == "Relu";
  return [relu, a = attributes_of(node, 1), packed = PackedFilters::of(node),
          activation = activation_of(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto given = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    const at::Tensor y = convolve(in[0], in[1], given(2), a, packed.get(), {given(3), relu});
    return {relu || !activation ? y : activation(y)};
  };
}

// Under autograd, where nothing is laid out anew.
TensorFunction plain_conv(const Node& node) {
  return [a = attributes_of(node, 2), activation = activation_of(node)](const std::vector<at::Tensor>& in) {
    const auto given = [&](size_t i) { return i < in.size() ? in[i] : at::Tensor(); };
    const at::Tensor y = convolve(in[0], in[1], given(2), a, nullptr, {given(3), false});
    return std::vector<at::Tensor>{activation ? activation(y) : y};
  };
}

ORTMODULE_KERNEL("com.microsoft", FusedConv, "aten", function_kernel_of<fused_conv>);
ORTMODULE_KERNEL("ai.ortmodule", FusedConvGrad, "aten", rerun_kernel_of<plain_conv>);

}  // namespace
}  // namespace ortmodule

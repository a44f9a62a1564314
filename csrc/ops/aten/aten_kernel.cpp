// Kernels of ATen and ATenGrad; see Note [Autograd state of an ATen node] in aten.cpp.
//
// The GIL is not held here. An operator written in Python (ortmodule::python_op and its autograd) takes it by itself.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>

#include "base/status.h"
#include "kernels/autograd_scope.h"
#include "ops/aten/arguments.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

c10::OperatorHandle find_operator(const Node& node) {
  const std::string name = node.get_string("operator", ""), overload = node.get_string("overload", "");
  const auto found = c10::Dispatcher::singleton().findSchema({name, overload == "default" ? "" : overload});
  ORTMODULE_CHECK(found.has_value(), kUnsupported, "[ATen] this PyTorch has no operator '", name,
                  overload.empty() ? "" : ".", overload, "' (", node.describe(),
                  "); the graph was captured with another version or without the extension that defines it");
  return *found;
}

// Everything a call returns as tensors, in order; numbers become 0-d tensors.
void flatten(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  } else if (value.isList()) {
    for (const c10::IValue& v : value.toListRef()) flatten(v, out);
  } else if (value.isTuple()) {
    for (const c10::IValue& v : value.toTupleRef().elements()) flatten(v, out);
  } else if (value.isScalar()) {
    const c10::Scalar s = value.toScalar();
    out.push_back(at::scalar_tensor(s, at::TensorOptions().dtype(s.type())));
  } else {
    out.emplace_back();
  }
}

class AtenCall {
 public:
  explicit AtenCall(const Node& node)
      : operator_(find_operator(node)),
        arguments_(node, operator_.schema()),
        outputs_(static_cast<size_t>(node.get_int("outputs", static_cast<int64_t>(node.outputs().size())))),
        saved_outputs_(node.get_ints("saved_outputs")),
        saved_inputs_(node.get_ints("saved_inputs")) {}

  void operator()(KernelContext& c) const {
    std::vector<at::Tensor> inputs(arguments_.tensor_count());
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = c.in_or_undefined(i);
    if (saved_inputs_.empty()) {
      const auto results = call(c, inputs);
      for (size_t i = 0; i < outputs_ && i < results.size(); ++i) c.out(i, results[i]);
      return;
    }
    AutogradScope scope;
    std::vector<at::Tensor> handles;
    for (int64_t i : saved_inputs_) {
      GradientInput input = gradient_input(inputs[static_cast<size_t>(i)]);
      inputs[static_cast<size_t>(i)] = std::move(input.tensor);
      handles.push_back(std::move(input.handle));
    }
    const auto results = call(c, inputs);
    for (size_t i = 0; i < outputs_ && i < results.size(); ++i)
      c.out(i, results[i].defined() ? results[i].detach() : results[i]);
    ORTMODULE_CHECK(results.size() >= outputs_, kRuntime, "[ATen] ", operator_.schema().name(), " gave ",
                    results.size(), " results, the node has ", outputs_);
    size_t slot = outputs_;
    for (int64_t i : saved_outputs_) c.out(slot++, results.at(static_cast<size_t>(i)));
    for (at::Tensor& handle : handles) c.out(slot++, std::move(handle));
  }

 private:
  std::vector<at::Tensor> call(const KernelContext& c, const std::vector<at::Tensor>& inputs) const {
    torch::jit::Stack stack = arguments_.stack(c, inputs);
    operator_.callBoxed(stack);
    std::vector<at::Tensor> results;
    results.reserve(outputs_);
    for (const c10::IValue& value : stack) flatten(value, results);
    return results;
  }

  c10::OperatorHandle operator_;
  AtenArguments arguments_;
  size_t outputs_;
  std::vector<int64_t> saved_outputs_, saved_inputs_;
};

// A gradient that nothing is computed of: where the operator gives none, there is none, as in eager.
bool leaves_at_once(const NodeArg* gradient) {
  return gradient && gradient->is_graph_output() && gradient->uses().empty();
}

Kernel make_grad(const Node& node) {
  std::vector<char> may_lack;
  for (const NodeArg* gradient : node.outputs()) may_lack.push_back(leaves_at_once(gradient));
  return [count = static_cast<size_t>(node.get_int("grads", 1)), may_lack](KernelContext& c) {
    std::vector<at::Tensor> grads, outputs, handles;
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& result = c.in(count + i);
      if (!result.requires_grad()) continue;  // the operator has no derivative for this output
      grads.push_back(c.in(i));
      outputs.push_back(result);
    }
    for (size_t i = 2 * count; i < c.input_count(); ++i) handles.push_back(c.in(i));
    std::vector<at::Tensor> result(handles.size());
    AutogradScope scope;
    if (!outputs.empty()) result = input_gradients(outputs, handles, grads);
    for (size_t i = 0; i < handles.size(); ++i)
      if (c.wants(i) && (result[i].defined() || !may_lack[i]))
        c.out(i, result[i].defined() ? result[i].detach() : input_zeros(handles[i]).detach());
  };
}

}  // namespace

ORTMODULE_KERNEL("org.pytorch.aten", ATen, "aten", [](const Node& node) -> Kernel {
  return AtenCall(node);
}).runs_foreign_code();
ORTMODULE_KERNEL("org.pytorch.aten", ATenGrad, "aten", make_grad).runs_foreign_code();

}  // namespace ortmodule

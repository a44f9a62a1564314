#include "runtime/constant_evaluator.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {

std::vector<TensorData> evaluate_constant_node(const Node& node) {
  const KernelDef* def = KernelRegistry::instance().find(node, {"cpu"});
  if (!def) return {};
  std::vector<at::Tensor> frame;
  std::vector<int> inputs, outputs;
  for (const NodeArg* in : node.inputs()) {
    if (in && !in->constant()) return {};
    inputs.push_back(in ? static_cast<int>(frame.size()) : -1);
    if (in) frame.push_back(shared_tensor_from(*in->constant()));
  }
  for (const NodeArg* out : node.outputs()) {
    outputs.push_back(out ? static_cast<int>(frame.size()) : -1);
    if (out) frame.emplace_back();
  }
  // Value-initialised: no input may be overwritten.
  const std::unique_ptr<bool[]> last_use = std::make_unique<bool[]>(inputs.size() + 1);
  const SymbolTable symbols;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  KernelContext context(frame.data(), &symbols);
  context.set_step({inputs.data(), inputs.size(), outputs.data(), outputs.size(), last_use.get()});
  std::vector<TensorData> results;
  try {
    make_kernel(*def, node)(context);
    for (size_t i = 0; i < outputs.size(); ++i) {
      results.push_back(outputs[i] < 0 ? TensorData{} : tensor_data_from(frame[outputs[i]]));
      // The graph knows the types below a byte, the tensor does not.
      const DType declared = outputs[i] < 0 ? DType::kUndefined : node.output(i)->type().dtype;
      if (declared != DType::kUndefined) results.back().dtype = declared;
    }
  } catch (const std::exception&) {
    return {};  // the run will say what is wrong, with the node's name
  }
  return results;
}

}  // namespace ortmodule

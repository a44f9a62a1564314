// SequenceMap's kernel.
#include "base/container_type.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "kernels/sequence_value.h"
#include "kernels/subgraph.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("", SequenceMap, "aten", [](const Node& node) -> Kernel {
  const size_t inputs = explicit_input_count(node);
  std::vector<at::ScalarType> types;
  for (const NodeArg* out : node.outputs())
    types.push_back(out ? to_scalar_type(element_of(out->type().dtype)) : at::kFloat);
  return [inputs, types, body = BodyCall(node, "body", inputs)](KernelContext& c) {
    const size_t length = sequence_elements(c.in(0)).size();
    for (size_t k = 1; k < inputs; ++k)
      ORTMODULE_CHECK(!holds_sequence(c.in(k)) || sequence_elements(c.in(k)).size() == length, kRuntime,
                      "[SequenceMap] input ", k, " has ", sequence_elements(c.in(k)).size(), " elements, input 0 has ",
                      length);
    std::vector<std::vector<at::Tensor>> results(types.size());
    for (size_t i = 0; i < length; ++i) {
      std::vector<at::Tensor> formals;
      for (size_t k = 0; k < inputs; ++k)
        formals.push_back(holds_sequence(c.in(k)) ? sequence_elements(c.in(k))[i] : c.in(k));
      std::vector<at::Tensor> outputs = body.run(c, std::move(formals));
      for (size_t k = 0; k < results.size(); ++k) results[k].push_back(std::move(outputs[k]));
    }
    for (size_t k = 0; k < results.size(); ++k) c.out(k, make_sequence(std::move(results[k]), types[k]));
  };
});

}  // namespace
}  // namespace ortmodule

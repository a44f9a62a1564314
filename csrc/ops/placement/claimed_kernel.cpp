// What runs a claim whose provider has no kernel for it: its nodes, one after the other.
#include "kernels/kernel_context.h"
#include "kernels/subgraph.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

ORTMODULE_KERNEL("ai.ortmodule", Claimed, "aten", [](const Node& node) -> Kernel {
  return [body = BodyCall(node, "body", node.inputs().size())](KernelContext& c) {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < c.input_count(); ++i) values.push_back(c.in_or_undefined(i));
    std::vector<at::Tensor> results = body.run(c, std::move(values));
    for (size_t i = 0; i < results.size(); ++i) c.out(i, std::move(results[i]));
  };
}).rare_types(RareTypes::kAsIs);

}  // namespace
}  // namespace ortmodule

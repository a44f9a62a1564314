// A provider that only tests have: "third", on the second guarded device, with a kernel of its own for products with a
// bias. It is what a user's provider is: a library that registers a factory, and kernels under its name.
#include <ATen/ops/add.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "kernels/kernel_context.h"
#include "placement/provider.h"
#include "records/kernel_registry.h"

namespace {

using namespace ortmodule;

std::atomic<int64_t> calls{0};  // of its own kernel

// The sum behind a product that nothing else reads, where all three operands are values of the graph.
const Node* bias_of(const Node& product, const std::unordered_set<const Node*>& open) {
  const NodeArg* result = product.output(0);
  if (result->is_graph_output() || result->uses().size() != 1 || product.input(0) == product.input(1)) return nullptr;
  const Node* sum = result->uses()[0].node;
  if (sum->op() != "Add" || !open.count(sum) || sum->phase() != product.phase()) return nullptr;
  const NodeArg* bias = sum->input(0) == result ? sum->input(1) : sum->input(0);
  for (const NodeArg* operand :
       {static_cast<const NodeArg*>(product.input(0)), static_cast<const NodeArg*>(product.input(1)), bias})
    if (operand->constant()) return nullptr;
  return bias == product.input(0) || bias == product.input(1) ? nullptr : sum;
}

class Third final : public ExecutionProvider {
 public:
  explicit Third(const ProviderSpec& spec) : ExecutionProvider(spec, "guarded:1") {}

  std::vector<Claim> capability(const std::vector<const Node*>& nodes) const override {
    const std::unordered_set<const Node*> open(nodes.begin(), nodes.end());
    std::vector<Claim> claims;
    std::unordered_set<const Node*> joined;
    for (const Node* node : nodes) {
      const Node* sum = node->op() == "MatMul" && may_run(*node) ? bias_of(*node, open) : nullptr;
      if (!sum || joined.count(sum)) continue;
      joined.insert({node, sum});
      claims.push_back({{node, sum}, "affine"});
    }
    for (Claim& claim : ExecutionProvider::capability(nodes))
      if (!joined.count(claim.nodes[0])) claims.push_back(std::move(claim));
    return claims;
  }
};

ORTMODULE_PROVIDER("third", [](const ProviderSpec& spec) -> std::shared_ptr<const ExecutionProvider> {
  return std::make_shared<const Third>(spec);
});

ORTMODULE_KERNEL("ai.ortmodule", Claimed, "third", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    ++calls;
    c.out(0, at::add(at::matmul(c.in(0), c.in(1)), c.in(2)));
  };
});

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t third_calls() { return calls; }

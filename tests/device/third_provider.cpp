// A provider that only tests have: "third", on the second guarded device, with a kernel of its own for linear layers
// with a tanh behind them. It is what a user's provider is: a library that registers a factory, and kernels under its
// name.
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "kernels/kernel_context.h"
#include "placement/provider.h"
#include "records/kernel_registry.h"

namespace {

using namespace ortmodule;

std::atomic<int64_t> calls{0};  // of its own kernel

// The tanh behind a linear layer that nothing else reads.
const Node* tanh_of(const Node& linear, const std::unordered_set<const Node*>& open) {
  const NodeArg* result = linear.output(0);
  if (result->is_graph_output() || result->uses().size() != 1 || linear.inputs().size() != 3) return nullptr;
  const Node* tanh = result->uses()[0].node;
  return tanh->op() == "Tanh" && open.count(tanh) ? tanh : nullptr;
}

class Third final : public ExecutionProvider {
 public:
  explicit Third(const ProviderSpec& spec) : ExecutionProvider(spec, "guarded:1") {}

  std::vector<Claim> capability(const std::vector<const Node*>& nodes) const override {
    const std::unordered_set<const Node*> open(nodes.begin(), nodes.end());
    std::vector<Claim> claims;
    std::unordered_set<const Node*> joined;
    for (const Node* node : nodes) {
      const Node* tanh = node->op() == "Linear" && may_run(*node) ? tanh_of(*node, open) : nullptr;
      if (!tanh) continue;
      joined.insert({node, tanh});
      claims.push_back({{node, tanh}, "linear_tanh"});
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
    c.out(0, at::tanh(at::linear(c.in(0), c.in(1), c.in(2))));
  };
});

}  // namespace

extern "C" __attribute__((visibility("default"))) int64_t third_calls() { return calls; }

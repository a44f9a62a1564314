#include "placement/early_copies.h"

#include <algorithm>
#include <vector>

#include "records/registry.h"

namespace ortmodule {
namespace {

// The views between a graph input and the copy, from the input on, and the copy itself; none where the value is another
// node's.
std::vector<Node*> chain_to(Node* copy) {
  std::vector<Node*> chain{copy};
  for (Node* node = copy->input(0)->producer(); node; node = node->input(0)->producer()) {
    const auto made = [](const NodeArg* in) { return in && in->producer(); };
    const bool view = node->record() && node->record()->has(kView) && node->input(0);
    if (!view || std::any_of(node->inputs().begin() + 1, node->inputs().end(), made)) return {};
    chain.push_back(node);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

}  // namespace

size_t begin_copies_early(Graph& graph) {
  const std::vector<Node*> order = graph.nodes();
  std::vector<Node*> early;
  size_t copies = 0;
  for (Node* node : order) {
    if (node->qualified_op() != "ai.ortmodule::MemcpyToHost" || node->phase() != Phase::kForward) continue;
    const std::vector<Node*> chain = chain_to(node);
    copies += !chain.empty();
    for (Node* one : chain)
      if (std::find(early.begin(), early.end(), one) == early.end()) early.push_back(one);
  }
  for (size_t i = early.size(); i-- > 0;) graph.move_before(early[i], graph.nodes().front());
  return copies;
}

}  // namespace ortmodule

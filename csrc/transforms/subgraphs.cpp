#include "transforms/subgraphs.h"

#include "graph/subgraph.h"

namespace ortmodule {
namespace {

// Larger ones stay outside: each body would hold a copy while it runs.
constexpr size_t kSharedBytes = 1 << 16;

bool is_shared(const NodeArg* value) {
  return value && value->constant() && !value->is_graph_input() && value->constant()->bytes->size() <= kSharedBytes;
}

size_t share(Node& node) {
  const std::vector<std::string> names = node.get_strings(kCapturedAttribute);
  if (names.empty()) return 0;
  const size_t first = explicit_input_count(node);
  size_t shared = 0;
  for (size_t k = 0; k < names.size(); ++k) {
    NodeArg* outer = node.input(first + k);
    if (!is_shared(outer)) continue;
    for_each_subgraph(node, [&](const std::string&, Graph& body) {
      NodeArg* inner = body.find(names[k]);
      if (!inner || !inner->is_graph_input()) return;
      body.replace_all_uses(inner, body.add_initializer(body.fresh_name(names[k] + "_constant"), *outer->constant()));
      body.remove_input(inner);
    });
    node.set_input(first + k, nullptr);
    ++shared;
  }
  return shared;
}

}  // namespace

size_t share_constants_with_subgraphs(Graph& graph) {
  size_t shared = 0;
  graph.for_each([&](Node& node) {
    shared += share(node);
    for_each_subgraph(node, [&](const std::string&, Graph& body) { shared += share_constants_with_subgraphs(body); });
  });
  return shared;
}

void for_all_subgraphs(Graph& graph, const std::function<void(Graph&)>& f) {
  graph.for_each([&](Node& node) {
    for_each_subgraph(node, [&](const std::string&, Graph& body) {
      f(body);
      for_all_subgraphs(body, f);
    });
  });
}

}  // namespace ortmodule

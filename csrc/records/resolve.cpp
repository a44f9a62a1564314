#include "records/resolve.h"

#include "base/container_type.h"
#include "base/limits.h"
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

int64_t opset_of(const Graph& graph, const std::string& domain) {
  auto it = graph.opsets().find(domain);
  // A domain that the model forgot to import is read at its newest version.
  return it == graph.opsets().end() ? INT64_MAX : it->second;
}

void find_record(Node& node) {
  if (node.record()) return;
  Registry& registry = Registry::instance();
  const OpRecord* record = registry.find(node.domain(), node.op(), opset_of(node.graph(), node.domain()));
  if (!record) {
    const std::string near = registry.suggestion(node.domain(), node.op());
    fail(ErrorCode::kUnsupported, "unknown operator ", node.qualified_op(), " at opset ",
         opset_of(node.graph(), node.domain()) == INT64_MAX ? str("(not imported)")
                                                            : str(opset_of(node.graph(), node.domain())),
         " (", node.describe(), ")", near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  node.set_record(record);
}

// Whether a rule knew nothing of a dim (InferContext::fresh_dim).
bool is_fresh(const Dim& dim) { return dim.text().starts_with("u_"); }

// What a rule says in terms of its inputs' dims wins over declared symbols, which exporters make up; a declared integer
// wins over any symbol, and anything that is declared over a fresh symbol of a rule.
void check_declared(const Node& node, const TypeInfo& declared, NodeArg* out) {
  const TypeInfo& inferred = out->type();
  if (declared.dtype != DType::kUndefined && inferred.dtype != DType::kUndefined && declared.dtype != inferred.dtype)
    fail(ErrorCode::kInvalidGraph, "[", node.op(), "] the output '", out->name(), "' is declared ",
         dtype_name(declared.dtype), ", but the operator gives ", dtype_name(inferred.dtype), " (", node.describe(),
         ")");
  if (!declared.shape) return;
  if (!inferred.shape) {
    out->set_type({inferred.dtype, declared.shape});
    return;
  }
  ORTMODULE_CHECK_GRAPH(declared.shape->size() == inferred.shape->size(), "[", node.op(), "] the output '", out->name(),
                        "' is declared with shape ", shape_text(*declared.shape), ", but the operator gives ",
                        shape_text(*inferred.shape), " (", node.describe(), ")");
  Shape merged = *inferred.shape;
  for (size_t i = 0; i < merged.size(); ++i) {
    const Dim& d = (*declared.shape)[i];
    ORTMODULE_CHECK_GRAPH(!d.is_known() || !merged[i].is_known() || d == merged[i], "[", node.op(), "] the output '",
                          out->name(), "' is declared with shape ", shape_text(*declared.shape),
                          ", but the operator gives ", shape_text(*inferred.shape), " (", node.describe(), ")");
    if (!merged[i].is_known() && (d.is_known() || is_fresh(merged[i]))) merged[i] = d;
  }
  out->set_type({inferred.dtype, std::move(merged)});
}

// A sequence or an optional where the operator expects a tensor.
void check_containers(const Node& node) {
  if (node.record()->has(kTakesContainers)) return;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const NodeArg* in = node.inputs()[i];
    ORTMODULE_CHECK_GRAPH(!in || !is_container(in->type().dtype), "[", node.op(), "] input ", i,
                          " should be a tensor, got ", dtype_name(in->type().dtype), " (", node.describe(), ")");
  }
}

void infer(Node& node) {
  check_containers(node);
  std::vector<TypeInfo> declared;
  for (const NodeArg* out : node.outputs()) declared.push_back(out ? out->type() : TypeInfo{});
  InferContext context(node);
  node.record()->infer_fn()(context);
  for (size_t i = 0; i < node.outputs().size(); ++i)
    if (node.outputs()[i]) check_declared(node, declared[i], node.outputs()[i]);
}

void check_outputs(const Graph& graph) {
  for (const NodeArg* out : graph.outputs())
    ORTMODULE_CHECK_GRAPH(out->producer() || out->is_graph_input() || out->constant(), "the graph output '",
                          out->name(), "' is produced by no node");
}

}  // namespace

void infer_node(Node& node) {
  find_record(node);
  infer(node);
}

void resolve(Graph& graph, const ResolveOptions& options) {
  const std::vector<Node*> nodes = graph.nodes();
  std::vector<Node*> order;
  order.reserve(nodes.size());
  for (Node* node : nodes) {
    find_record(*node);
    node->record()->check_node(*node);
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      const NodeArg* in = node->inputs()[i];
      if (!in) continue;
      ORTMODULE_CHECK_GRAPH(in->producer() || in->is_graph_input() || in->constant(), "[", node->op(), "] reads '",
                            in->name(), "', which is no graph input, no initializer and no node's output (",
                            node->describe(), ")");
    }
  }
  // A depth-first visit in list order (iterative: graphs are deep) keeps an order that is already right as it is,
  // which random operators need.
  std::vector<char> state(graph.node_id_bound(), 0);  // 0 new, 1 on the stack, 2 done
  std::vector<std::pair<Node*, size_t>> stack;
  for (Node* root : nodes) {
    if (state[root->id()]) continue;
    stack.emplace_back(root, 0);
    state[root->id()] = 1;
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == node->inputs().size()) {
        state[node->id()] = 2;
        order.push_back(node);
        stack.pop_back();
        continue;
      }
      const NodeArg* in = node->inputs()[next++];
      if (!in || !in->producer()) continue;
      Node* producer = in->producer();
      if (state[producer->id()] == 2) continue;
      ORTMODULE_CHECK_GRAPH(state[producer->id()] == 0, "the graph has a cycle through ", producer->describe(), " and ",
                            node->describe());
      state[producer->id()] = 1;
      stack.emplace_back(producer, 0);
    }
  }
  graph.reorder(order);
  check_outputs(graph);
  if (!options.infer) return;
  const Allowance* const allowance = Allowance::current().get();
  for (Node* node : order) {
    if (allowance) allowance->check_time();
    infer(*node);
  }
}

}  // namespace ortmodule

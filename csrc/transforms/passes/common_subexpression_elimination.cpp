// Merges nodes that compute the same: one operator, equal attributes, the same inputs.
//
// Hash-consing in list order: when a node is looked at, its inputs are merged already, so that one walk finds
// everything. Not merged: random operators, side effects, opaque ATen nodes (whether they are pure is not known here),
// nodes with subgraphs, and nodes whose output is a graph output (two results of the caller must not be one tensor). A
// backward node is not merged into a forward one, which would keep the forward value alive between the two, except
// where the result is a small host vector. Equal initializers come first: integers up to 4 KB and scalars, never one
// that is trained.
#include "records/registry.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

constexpr size_t kMergedInitializerBytes = 4096;

void put(std::string& key, const void* data, size_t size) { key.append(static_cast<const char*>(data), size); }

void put_number(std::string& key, uint64_t n) { put(key, &n, sizeof(n)); }

void put_string(std::string& key, std::string_view text) {
  put_number(key, text.size());
  key += text;
}

// Appends what two attributes must share; false for a subgraph.
bool put_attribute(std::string& key, const AttributeValue& value) {
  put_number(key, value.index());
  if (const auto* i = std::get_if<int64_t>(&value)) {
    put_number(key, static_cast<uint64_t>(*i));
  } else if (const auto* d = std::get_if<double>(&value)) {
    put(key, d, sizeof(*d));
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    put_string(key, *s);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    put_number(key, ints->size());
    put(key, ints->data(), ints->size() * sizeof(int64_t));
  } else if (const auto* doubles = std::get_if<std::vector<double>>(&value)) {
    put_number(key, doubles->size());
    put(key, doubles->data(), doubles->size() * sizeof(double));
  } else if (const auto* strings = std::get_if<std::vector<std::string>>(&value)) {
    put_number(key, strings->size());
    for (const std::string& text : *strings) put_string(key, text);
  } else if (const auto* tensor = std::get_if<TensorData>(&value)) {
    put_number(key, static_cast<uint64_t>(tensor->dtype));
    put_number(key, tensor->dims.size());
    put(key, tensor->dims.data(), tensor->dims.size() * sizeof(int64_t));
    put_string(key, *tensor->bytes);
  } else {
    return false;
  }
  return true;
}

// What two nodes must share to be merged; empty for a node that never is.
std::string key_of(const Node& node) {
  const OpRecord* record = node.record();
  if (!record || record->has(kRandom) || record->has(kSideEffect) || record->has(kOpaque)) return {};
  if (record->has(kCollective)) return {};
  std::string key;
  put_string(key, node.domain());
  put_string(key, node.op());
  put_number(key, record->has(kHostOutput) ? 0 : static_cast<uint64_t>(node.phase()));
  put_number(key, node.inputs().size());
  for (const NodeArg* in : node.inputs()) put_number(key, in ? in->id() + 1 : 0);
  for (const auto& [name, value] : node.attributes()) {
    put_string(key, name);
    if (!put_attribute(key, value)) return {};
  }
  for (const auto& [name, value] : node.metadata()) {  // "recompute" and the like separate; where it came from does not
    if (name == "source" || name == "stack") continue;
    put_string(key, name);
    put_string(key, value);
  }
  return key;
}

class CommonSubexpressionElimination : public GraphTransformer {
 public:
  const char* name() const override { return "common_subexpression_elimination"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    size_t modifications = merge_initializers(graph, context);
    std::unordered_map<std::string, Node*> seen;
    graph.for_each([&](Node& node) {
      std::string key = key_of(node);
      if (key.empty()) return;
      const auto [it, inserted] = seen.try_emplace(std::move(key), &node);
      if (inserted || !merge(graph, node, *it->second)) return;
      ++modifications;
    });
    return modifications;
  }

 private:
  // Floating tensors may be weights that only happen to be equal (two zero biases), so only 0-d ones are merged.
  static bool mergeable(const NodeArg& value, const TransformContext& context) {
    const TensorData& data = *value.constant();
    if (data.bytes->size() > kMergedInitializerBytes || value.is_graph_output() || value.uses().empty()) return false;
    return (data.dims.empty() || !is_floating(data.dtype)) && !context.grad_inputs.count(&value);
  }

  static size_t merge_initializers(Graph& graph, const TransformContext& context) {
    std::unordered_map<std::string, NodeArg*> seen;
    size_t merged = 0;
    for (NodeArg* value : graph.initializers()) {
      if (!mergeable(*value, context)) continue;
      std::string key;
      put_attribute(key, *value->constant());
      const auto [it, inserted] = seen.try_emplace(std::move(key), value);
      if (inserted) continue;
      graph.replace_all_uses(value, it->second);
      ++merged;
    }
    return merged;
  }

  static bool merge(Graph& graph, Node& node, Node& first) {
    for (const NodeArg* out : node.outputs())
      if (out && out->is_graph_output()) return false;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      NodeArg* out = node.outputs()[i];
      if (!out) continue;
      NodeArg* target = first.output(i);
      if (!target) {  // the first one lacks an optional output that this one has
        target = graph.materialize_output(&first, i, out->name() + "_merged");
        target->set_type(out->type());
        target->set_known_dims(out->known_dims());
      }
      graph.replace_all_uses(out, target);
    }
    graph.remove(&node);
    return true;
  }
};

}  // namespace

ORTMODULE_PASS(CommonSubexpressionElimination, PassLevel::kBasic, kBothStages, pass_place::kCleanUp + 2);

}  // namespace ortmodule

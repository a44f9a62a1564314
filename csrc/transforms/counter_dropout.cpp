// With the option dropout="fast": Dropout in training mode, whose mask nobody reads, becomes
// ai.ortmodule::PhiloxDropout, which recomputes its mask in backward from (seed, element index) instead of storing it.
// AttentionDropout becomes PhiloxAttention, which stays one node and never stores a mask or a probability.
//
// Only when asked for: the numbers drawn are not those of PyTorch's eager dropout. An inference session of a module in
// train mode draws in the same way, because torch.utils.checkpoint runs the same forward first without gradients.
#include "records/resolve.h"
#include "transforms/passes.h"

namespace ortmodule {
namespace {

// The node's first output, whatever uses it, is made by `op` from `inputs`.
void replace(Graph& graph, Node& node, const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
  Node* fast = graph.add_node("ai.ortmodule", op, inputs, {}, std::move(attributes), &node, node.name());
  fast->metadata() = node.metadata();
  fast->set_phase(node.phase());
  graph.move_output(node.output(0), fast, 0);
  infer_node(*fast);
  graph.remove(&node);
}

class CounterDropoutRule : public RewriteRule {
 public:
  const char* name() const override { return "counter_dropout"; }
  std::vector<std::string> ops() const override { return {"Dropout"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    if (context.options.dropout != "fast") return false;
    const NodeArg *mask = node.output(1), *mode = node.input(2);
    if (mask && (!mask->uses().empty() || mask->is_graph_output())) return false;
    // A seed asks for one fixed stream.
    if (!node.output(0) || node.find_attribute("seed")) return false;
    return mode && mode->constant() && mode->constant()->to_ints() == std::vector<int64_t>{1};
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    NodeArg* ratio = node.input(1) ? node.input(1) : graph.constant(TensorData::scalar(DType::kDouble, 0.5));
    replace(graph, node, "PhiloxDropout", {node.input(0), ratio}, {});
  }
};

class CounterAttentionRule : public RewriteRule {
 public:
  const char* name() const override { return "counter_attention"; }
  std::vector<std::string> ops() const override { return {"ai.ortmodule::AttentionDropout"}; }

  bool match(const Node&, const TransformContext& context) const override { return context.options.dropout == "fast"; }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    replace(graph, node, "PhiloxAttention", node.inputs(), node.attributes());
  }
};

}  // namespace

std::unique_ptr<GraphTransformer> make_counter_dropout() {
  std::vector<std::unique_ptr<RewriteRule>> rules;
  rules.push_back(std::make_unique<CounterDropoutRule>());
  rules.push_back(std::make_unique<CounterAttentionRule>());
  return std::make_unique<RuleBasedTransformer>("counter_dropout", std::move(rules));
}

}  // namespace ortmodule

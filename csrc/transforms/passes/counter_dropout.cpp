// With the option dropout="fast": Dropout in training mode, whose mask nobody reads, becomes
// ai.ortmodule::PhiloxDropout, which makes its mask again in backward instead of storing it. AttentionDropout becomes
// PhiloxAttention, which stays one node and never stores a mask or a probability. Both read the graph's one RandomState
// and have a stream of it each (Note [Random state]), in the order of the graph.
//
// Only when asked for: the numbers drawn are not those of PyTorch's eager dropout. An inference session of a module in
// train mode draws in the same way, because torch.utils.checkpoint runs the same forward first without gradients.
#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

bool is_plain_training_dropout(const Node& node) {
  const NodeArg *mask = node.output(1), *mode = node.input(2);
  if (mask && (!mask->uses().empty() || mask->is_graph_output())) return false;
  // A seed asks for one fixed stream.
  if (!node.output(0) || node.find_attribute("seed")) return false;
  return mode && mode->constant() && mode->constant()->to_ints() == std::vector<int64_t>{1};
}

class CounterDropout : public GraphTransformer {
 public:
  const char* name() const override { return "counter_dropout"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    if (context.options.dropout != "fast") return 0;
    size_t modifications = 0;
    Node* state = nullptr;
    for (Node* node : graph.nodes()) {
      if (node->qualified_op() == kState) state = node;
      const bool attention = node->qualified_op() == "ai.ortmodule::AttentionDropout";
      if (!attention && !(node->qualified_op() == "Dropout" && is_plain_training_dropout(*node))) continue;
      if (!state) state = add_state(graph, node);
      replace(graph, *node, *state, attention, context.options.whole_masks);
      ++modifications;
    }
    return modifications;
  }

 private:
  static constexpr const char* kState = "ai.ortmodule::RandomState";

  static Node* add_state(Graph& graph, Node* first) {
    Node* state = graph.add_node("ai.ortmodule", "RandomState", {}, {graph.fresh_name("random_state")}, {}, first);
    state->set_phase(first->phase());
    infer_node(*state);
    return state;
  }

  // What made the node's first output, from now on with a stream that no other node has or had.
  static void replace(Graph& graph, Node& node, Node& state, bool attention, bool whole) {
    const int64_t stream = state.get_int("streams", 0);
    state.set_attribute("streams", stream + 1);
    std::vector<NodeArg*> inputs = node.inputs();
    Attributes attributes = attention ? node.attributes() : Attributes{};
    if (!attention)
      inputs = {node.input(0), node.input(1) ? node.input(1) : graph.constant(TensorData::scalar(DType::kDouble, 0.5))};
    inputs.push_back(state.output(0));
    attributes["stream"] = stream;
    if (whole && !attention) attributes["whole"] = int64_t{1};
    const char* op = attention ? "PhiloxAttention" : "PhiloxDropout";
    Node* fast = graph.add_node("ai.ortmodule", op, inputs, {}, std::move(attributes), &node, node.name());
    fast->metadata() = node.metadata();
    fast->set_phase(node.phase());
    graph.move_output(node.output(0), fast, 0);
    infer_node(*fast);
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_PASS(CounterDropout, PassLevel::kBasic, kForwardOnly, pass_place::kRandom);

}  // namespace ortmodule

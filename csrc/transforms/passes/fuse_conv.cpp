// Relu(Conv(x, w, b)) and Relu(Conv(x, w, b) + z) become FusedConv where the weights are constants, in graphs of
// inference: the sum and the Relu cost passes over memory that the convolution can spare.
//
// z is of the result's shape. Results that something else reads, or that are graph outputs, stay.
#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

const Node* only_conv(const NodeArg* value) {
  const Node* node = value->producer();
  const bool alone = value->uses().size() == 1 && !value->is_graph_output();
  return node && alone && node->qualified_op() == "Conv" && node->input(1)->constant() ? node : nullptr;
}

struct Found {
  const Node* conv = nullptr;
  NodeArg* added = nullptr;
};

Found find(const Node& relu) {
  const NodeArg* value = relu.input(0);
  if (const Node* conv = only_conv(value)) return {conv, nullptr};
  const Node* add = value->producer();
  if (!add || add->qualified_op() != "Add" || value->uses().size() != 1 || value->is_graph_output()) return {};
  for (size_t i = 0; i < 2; ++i) {
    const auto &shape = add->input(i)->type().shape, &other = add->input(1 - i)->type().shape;
    if (!shape || shape != other) continue;
    if (const Node* conv = only_conv(add->input(i))) return {conv, add->input(1 - i)};
  }
  return {};
}

class ConvRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_conv"; }
  std::vector<std::string> ops() const override { return {"Relu"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && node.output(0)->type().dtype == DType::kFloat && find(node).conv;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const auto [conv, added] = find(node);
    Attributes attributes = conv->attributes();
    attributes["activation"] = std::string("Relu");
    const std::vector<NodeArg*> inputs{conv->input(0), conv->input(1), conv->input(2), added};
    Node* fused =
        graph.add_node("com.microsoft", "FusedConv", inputs, {""}, std::move(attributes), &node, conv->name());
    fused->metadata() = conv->metadata();
    infer_node(*fused);
    graph.replace_all_uses(node.output(0), fused->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_conv", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 4, ConvRule);

}  // namespace ortmodule

// A layer norm that is written out becomes one node, in graphs of inference:
//
//     y = (x - m) / sqrt(mean((x - m)^2) + epsilon) * scale + bias, m = mean(x), over the last axis
//     y = x / sqrt(mean(x^2) + epsilon) * scale                     (RMSNormalization)
//
// scale and bias are constants of the last axis's size; division also as a product with the reciprocal.
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

// What a value is the mean of over its last axis; null.
const NodeArg* meaned(const NodeArg* value, size_t rank) {
  const Node* node = made_by(value, "ReduceMean");
  if (!node || node->get_int("keepdims", 1) != 1) return nullptr;
  const std::optional<double> axis = number(node->input(1));
  return axis == -1.0 || axis == static_cast<double>(rank) - 1 ? node->input(0) : nullptr;
}

struct Normalized {
  const NodeArg* value = nullptr;  // divided by the root of the mean of its squares
  double epsilon = 0;
};

// value / sqrt(mean(value^2) + epsilon), which `result` is.
Normalized normalized(const NodeArg* result) {
  const Node* node = result->producer();
  if (!node || !has_one_use(result) || !result->type().shape) return {};
  const NodeArg *value = nullptr, *root = nullptr;
  if (node->qualified_op() == "Div") {
    value = node->input(0);
    root = node->input(1);
  } else if (node->qualified_op() == "Mul") {
    for (size_t i = 0; i < 2 && !root; ++i) {
      const Node* reciprocal = made_by(node->input(i), "Reciprocal");
      const Node* division = made_by(node->input(i), "Div");
      if (division && number(division->input(0)) != 1.0) division = nullptr;
      if (!reciprocal && !division) continue;
      root = reciprocal ? reciprocal->input(0) : division->input(1);
      value = node->input(1 - i);
    }
  }
  const Node* sqrt = root ? made_by(root, "Sqrt") : nullptr;
  const Node* add = sqrt ? made_by(sqrt->input(0), "Add") : nullptr;
  for (size_t i = 0; add && i < 2; ++i) {
    const std::optional<double> epsilon = number(add->input(1 - i));
    const NodeArg* squares = epsilon ? meaned(add->input(i), result->type().shape->size()) : nullptr;
    if (!squares || !has_one_use(squares) || !same_shape(value, result)) continue;
    const Product square = product_of(squares);
    if (square.scale == 1 && square.is_power(value, 2)) return {value, *epsilon};
  }
  return {};
}

// x of x - mean(x); null.
NodeArg* centered(const NodeArg* value) {
  const Node* sub = value->producer();
  if (!sub || sub->qualified_op() != "Sub" || value->is_graph_output() || !value->type().shape) return nullptr;
  NodeArg* const x = sub->input(0);
  return meaned(sub->input(1), value->type().shape->size()) == x ? x : nullptr;
}

bool is_of_last_axis(const NodeArg* weight, const NodeArg* x) {
  const auto &of = weight->type().shape, &shape = x->type().shape;
  return weight->constant() && of && shape && of->size() == 1 && !shape->empty() && of->back() == shape->back();
}

struct Found {
  NodeArg *x = nullptr, *scale = nullptr, *bias = nullptr;
  double epsilon = 0;
  bool layer = false;  // the mean is taken away
};

// normalized * scale, which `result` is; the mean is taken away before where `is_centered`.
Found scaled(const NodeArg* result, bool is_centered) {
  const Node* mul = result->producer();
  if (!mul || mul->qualified_op() != "Mul") return {};
  for (size_t i = 0; i < 2; ++i) {
    if (!is_of_last_axis(mul->input(i), result)) continue;
    const Normalized found = normalized(mul->input(1 - i));
    if (!found.value) continue;
    NodeArg* const x = is_centered ? centered(found.value) : const_cast<NodeArg*>(found.value);
    // x - m is read by the squares, twice where they are a product, and by the division.
    if (x && (!is_centered || found.value->uses().size() <= 3))
      return {x, mul->input(i), nullptr, found.epsilon, is_centered};
  }
  return {};
}

Found find(const Node& node) {
  if (node.op() == "Mul") {
    const NodeArg* result = node.output(0);
    const Found layer = scaled(result, true);
    if (!layer.x) return scaled(result, false);
    const Node* add = has_one_use(result) ? result->uses().front().node : nullptr;
    return add && add->qualified_op() == "Add" && find(*add).x ? Found{} : layer;  // with the bias
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!is_of_last_axis(node.input(i), node.output(0)) || !has_one_use(node.input(1 - i))) continue;
    Found found = scaled(node.input(1 - i), true);
    found.bias = node.input(i);
    if (found.x) return found;
  }
  return {};
}

class LayerNormRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_layer_norm"; }
  std::vector<std::string> ops() const override { return {"Add", "Mul"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    const DType type = node.output(0)->type().dtype;
    if (context.training || (type != DType::kFloat && type != DType::kDouble)) return false;
    const Found found = find(node);
    return found.x && same_shape(found.x, node.output(0));
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Found found = find(node);
    const Attributes attributes{{"axis", int64_t{-1}}, {"epsilon", found.epsilon}};
    std::vector<NodeArg*> inputs{found.x, found.scale};
    if (found.bias) inputs.push_back(found.bias);
    Node* norm = graph.add_node("", found.layer ? "LayerNormalization" : "RMSNormalization", inputs, {""}, attributes,
                                &node, node.name());
    norm->metadata() = node.metadata();
    infer_node(*norm);
    graph.replace_all_uses(node.output(0), norm->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_layer_norm", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 6, LayerNormRule);

}  // namespace ortmodule

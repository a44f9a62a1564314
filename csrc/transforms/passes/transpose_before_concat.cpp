// Reshape(Transpose(Concat(parts))) becomes Reshape(Concat(Transpose(part)...)): the Transposes are views, and Concat
// writes in the order that Reshape wants, which else copies everything once more. A GatherRows in between is a view
// where all rows are listed.
//
// That is what the gradient of a joint projection to queries, keys and values looks like. Behind other readers, which
// take any strides, parts that are copied whole are worth more.
#include <algorithm>
#include <numeric>

#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

const Node* only_reader(const NodeArg* value) {
  return value->uses().size() == 1 && !value->is_graph_output() ? value->uses().front().node : nullptr;
}

class TransposeRule : public RewriteRule {
 public:
  const char* name() const override { return "transpose_before_concat"; }
  std::vector<std::string> ops() const override { return {"Transpose"}; }

  bool match(const Node& node, const TransformContext&) const override {
    const Node* concat = node.input(0)->producer();
    if (!concat || concat->qualified_op() != "Concat" || concat->phase() != node.phase()) return false;
    if (!node.input(0)->type().shape || only_reader(node.input(0)) != &node) return false;
    const Node* reader = only_reader(node.output(0));
    if (reader && reader->qualified_op() == "ai.ortmodule::GatherRows" && reader->input(0) == node.output(0))
      reader = only_reader(reader->output(0));
    return reader && reader->qualified_op() == "Reshape" && reader->phase() == node.phase();
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    Node& concat = *node.input(0)->producer();
    const auto rank = static_cast<int64_t>(node.input(0)->type().shape->size());
    std::vector<int64_t> perm = node.get_ints("perm");
    if (perm.empty()) {
      perm.resize(static_cast<size_t>(rank));
      std::iota(perm.rbegin(), perm.rend(), 0);
    }
    const int64_t given = concat.get_int("axis", 0), axis = given < 0 ? given + rank : given;
    const int64_t moved = std::find(perm.begin(), perm.end(), axis) - perm.begin();
    const auto add = [&](const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
      Node* added = graph.add_node("", op, inputs, {""}, std::move(attributes), &node, concat.name());
      added->metadata() = concat.metadata();
      added->set_phase(node.phase());
      infer_node(*added);
      return added->output(0);
    };
    std::vector<NodeArg*> parts;
    for (NodeArg* part : concat.inputs()) parts.push_back(add("Transpose", {part}, {{"perm", perm}}));
    graph.replace_all_uses(node.output(0), add("Concat", parts, {{"axis", moved}}));
    graph.remove(&node);
    graph.remove(&concat);
  }
};

}  // namespace

ORTMODULE_RULES("transpose_before_concat", PassLevel::kBasic, kJointOnly, pass_place::kBackward + 1, TransposeRule);

}  // namespace ortmodule

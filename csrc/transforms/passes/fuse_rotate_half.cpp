// Concat(Neg(second half), first half) of one value's last axis becomes RotateHalf: see ops/shape/rotate_half.cpp.
//
// The halves are the parts of a Split (torch.chunk) or Slices (x[..., :n // 2]). After the passes that follow rows
// through a Concat. A Concat that is a graph output stays: names of outputs are part of the interface.
#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

// Elements [start, start + size) of a value's last axis.
struct Part {
  NodeArg* whole = nullptr;
  int64_t start = 0, size = 0;
};

// The size of the last axis, which has to be known; -1.
int64_t last_size(const NodeArg* value) {
  if (!value || !value->type().shape || value->type().shape->empty()) return -1;
  const Dim& last = value->type().shape->back();
  return last.is_known() ? last.value() : -1;
}

bool is_last(int64_t axis, const NodeArg* value) {
  return axis == -1 || axis == static_cast<int64_t>(value->type().shape->size()) - 1;
}

// The only integer of a constant; none elsewhere.
std::optional<int64_t> only_int(const NodeArg* value) {
  if (!value || !value->constant()) return std::nullopt;
  const std::vector<int64_t> ints = value->constant()->to_ints();
  return ints.size() == 1 ? std::optional(ints[0]) : std::nullopt;
}

Part part_of(NodeArg* value) {
  const Node* node = value ? value->producer() : nullptr;
  const int64_t size = last_size(value);
  if (!node || size < 0) return {};
  NodeArg* whole = node->input(0);
  const int64_t all = last_size(whole);
  if (all < 0) return {};
  if (node->qualified_op() == "Split") {
    if (!is_last(node->get_int("axis", 0), whole)) return {};
    int64_t start = 0;
    for (const NodeArg* out : node->outputs()) {
      if (out == value) return {whole, start, size};
      if (last_size(out) < 0) return {};
      start += last_size(out);
    }
    return {};
  }
  if (node->qualified_op() != "Slice") return {};
  const auto start = only_int(node->input(1)), axis = only_int(node->input(3)), step = only_int(node->input(4));
  if (!start || !axis || !is_last(*axis, whole) || (node->input(4) && step != 1)) return {};
  return {whole, *start < 0 ? std::max<int64_t>(0, *start + all) : *start, size};
}

class RotateHalfRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_rotate_half"; }
  std::vector<std::string> ops() const override { return {"Concat"}; }

  bool match(const Node& node, const TransformContext&) const override {
    const NodeArg* out = node.output(0);
    if (node.inputs().size() != 2 || out->is_graph_output() || !is_floating(out->type().dtype)) return false;
    if (last_size(out) < 0 || !is_last(node.get_int("axis", 0), out)) return false;
    const Node* neg = node.input(0)->producer();
    if (!neg || neg->qualified_op() != "Neg" || neg->phase() != node.phase()) return false;
    const Part second = part_of(neg->input(0)), first = part_of(node.input(1));
    return second.whole && second.whole == first.whole && first.size == second.size && first.start == 0 &&
           second.start == first.size && last_size(first.whole) == 2 * first.size;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    Node* rotated =
        graph.add_node("ai.ortmodule", "RotateHalf", {part_of(node.input(1)).whole}, {""}, {}, &node, node.name());
    rotated->metadata() = node.metadata();
    rotated->set_phase(node.phase());
    infer_node(*rotated);
    graph.replace_all_uses(node.output(0), rotated->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_rotate_half", PassLevel::kBasic, kForwardOnly, pass_place::kPatterns + 2, RotateHalfRule);

}  // namespace ortmodule

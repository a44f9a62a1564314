#include "transforms/lower_sizes.h"

#include <map>

#include "base/status.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

// Emits int64[1] values for an expression; a handle is an index into values_.
class SizeEmitter : public DimVisitor {
 public:
  SizeEmitter(Graph& graph, Node& node) : graph_(graph), node_(node) {
    const std::vector<std::string> bound = node.get_strings("symbols");
    for (size_t i = 0; i < bound.size(); ++i)
      if (node.input(i)) bound_[bound[i]] = node.input(i);
  }

  NodeArg* expression(const std::string& text) { return values_[Dim::parse(text).visit(*this)]; }
  bool failed() const { return failed_; }

  NodeArg* emit(const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes = {}) {
    Node* made = graph_.add_node("", op, inputs, {""}, std::move(attributes), &node_, node_.name() + "/" + op);
    made->set_phase(node_.phase());
    infer_node(*made);
    return made->output(0);
  }

  size_t number(int64_t value) override { return keep(graph_.constant(TensorData::of_ints({value}))); }

  size_t symbol(const std::string& name) override {
    if (auto it = bound_.find(name); it != bound_.end())
      return keep(emit("Reshape", {it->second, graph_.constant(TensorData::of_ints({1}))}));
    for (NodeArg* in : graph_.inputs()) {
      if (!in->type().shape) continue;
      for (size_t axis = 0; axis < in->type().shape->size(); ++axis)
        if ((*in->type().shape)[axis].lone_symbol() == name)
          return keep(emit("Gather",
                           {emit("Shape", {in}), graph_.constant(TensorData::of_ints({static_cast<int64_t>(axis)}))},
                           {{"axis", int64_t{0}}}));
    }
    failed_ = true;
    return number(0);
  }

  size_t apply(Op op, size_t a, size_t b) override {
    NodeArg *x = values_[a], *y = values_[b];
    switch (op) {
      case Op::kAdd:
        return keep(emit("Add", {x, y}));
      case Op::kMul:
        return keep(emit("Mul", {x, y}));
      case Op::kMod:
        return keep(emit("Mod", {x, y}));  // takes the divisor's sign, as Python's % does
      case Op::kMax:
        return keep(emit("Max", {x, y}));
      case Op::kMin:
        return keep(emit("Min", {x, y}));
      case Op::kFloorDiv:
        break;
    }
    // ONNX's Div truncates; without the remainder nothing is left to round.
    return keep(emit("Div", {emit("Sub", {x, emit("Mod", {x, y})}), y}));
  }

 private:
  size_t keep(NodeArg* value) {
    values_.push_back(value);
    return values_.size() - 1;
  }

  Graph& graph_;
  Node& node_;
  std::map<std::string, NodeArg*> bound_;
  std::vector<NodeArg*> values_;
  bool failed_ = false;
};

}  // namespace

bool lower_sizes(Graph& graph, Node& node) {
  SizeEmitter emitter(graph, node);
  std::vector<NodeArg*> parts;
  for (const std::string& text : node.get_strings("exprs")) parts.push_back(emitter.expression(text));
  if (emitter.failed() || !node.output(0) || node.output(0)->is_graph_output()) return false;
  NodeArg* result = nullptr;
  if (node.get_int("scalar", 0) != 0) {
    if (parts.size() != 1) return false;
    result = emitter.emit("Reshape", {parts[0], graph.constant(TensorData::of_ints({}))});
  } else if (parts.empty()) {
    result = graph.constant(TensorData::of_ints({}));
  } else {
    result = parts.size() == 1 ? parts[0] : emitter.emit("Concat", parts, {{"axis", int64_t{0}}});
  }
  graph.replace_all_uses(node.output(0), result);
  graph.remove(&node);
  return true;
}

}  // namespace ortmodule

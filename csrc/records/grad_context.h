// What a gradient formula sees: I(i) O(i) GO(i) and the setter GI(i, value), as values of the graph, with helpers
// that emit nodes. A formula names no gradient of another operator; it composes operators.
//
// Note [Saved outputs]
// What backward needs from the inside of a forward kernel (a mean, a log-sum-exp, indices) is an output that the
// record declares with .saved(name). It exists on a node only after a formula asked for it with saved(name): an
// inference graph never computes it. In files such a node is written in the domain ai.ortmodule, because the
// standard's schema has no such output.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "ortmodule/export.h"

namespace ortmodule {

class GradContext {
 public:
  // `grad_outputs[i]` is null where no gradient flows into output i; `needed[i]` says whether input i wants one.
  GradContext(Graph& graph, Node& node, std::vector<NodeArg*> grad_outputs, std::vector<bool> needed)
      : graph_(graph),
        node_(node),
        grad_outputs_(std::move(grad_outputs)),
        needed_(std::move(needed)),
        heard_(grad_outputs_.size(), 0),
        grad_inputs_(needed_.size(), nullptr) {}

  Graph& graph() { return graph_; }
  Node& node() { return node_; }
  size_t input_count() const { return node_.inputs().size(); }
  NodeArg* I(size_t i) const { return node_.input(i); }
  ORTMODULE_API NodeArg* O(size_t i);  // an absent optional output comes into being
  // Null when nothing flows in; formulas of single-output operators may rely on GO(0).
  NodeArg* GO(size_t i) const {
    if (i >= grad_outputs_.size()) return nullptr;
    heard_[i] = 1;
    return grad_outputs_[i];
  }
  bool needs(size_t i) const { return i < needed_.size() && needed_[i] && node_.input(i); }
  ORTMODULE_API void GI(size_t i, NodeArg* value);
  NodeArg* saved(const std::string& name);  // Note [Saved outputs]

  // -- emitting ----------------------------------------------------------------------------------------------------
  // `op` is "Mul" (ai.onnx) or "ai.ortmodule::GeluGrad"; types are inferred at once.
  NodeArg* emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes = {});
  ORTMODULE_API std::vector<NodeArg*> emit_n(const std::string& op, const std::vector<NodeArg*>& inputs, size_t outputs,
                                             Attributes attributes = {});
  // emit_n with output i left absent where wanted[i] is false.
  std::vector<NodeArg*> emit_some(const std::string& op, const std::vector<NodeArg*>& inputs,
                                  const std::vector<bool>& wanted, Attributes attributes = {});
  ORTMODULE_API NodeArg* ints(const std::vector<int64_t>& values);   // int64[n] constant
  ORTMODULE_API NodeArg* scalar_int(int64_t value);                  // int64 0-d constant
  ORTMODULE_API NodeArg* scalar(double value, const NodeArg* like);  // 0-d constant of like's dtype
  // The sizes of `value` as an int64 vector, without keeping `value` alive where its shape is known symbolically.
  ORTMODULE_API NodeArg* sizes_of(const NodeArg* value);
  // int64[n] from dims: a constant when all are integers, else a Sizes node.
  NodeArg* sizes(const std::vector<Dim>& dims);
  NodeArg* size_scalar(const Dim& dim);
  NodeArg* cast(NodeArg* value, DType dtype);  // nothing emitted when it has that type already
  ORTMODULE_API NodeArg* zeros_like(NodeArg* value);
  // Undoes broadcasting: sums `grad` to the shape of `like`.
  ORTMODULE_API NodeArg* reduce_to(NodeArg* grad, NodeArg* like);

  const std::vector<NodeArg*>& results() const { return grad_inputs_; }
  // Whether the formula asked for every gradient that there is.
  bool heard_all() const;

 private:
  Graph& graph_;
  Node& node_;
  std::vector<NodeArg*> grad_outputs_;
  std::vector<bool> needed_;
  mutable std::vector<char> heard_;  // by output: the formula asked for its gradient
  std::vector<NodeArg*> grad_inputs_;
};

// Emits an operator's body in plain ONNX operators; see OpRecord::body.
class BodyContext {
 public:
  BodyContext(Graph& graph, Node& node) : graph_(graph), node_(node), results_(node.outputs().size(), nullptr) {}
  Node& node() { return node_; }
  NodeArg* in(size_t i) const { return node_.input(i); }
  bool wants(size_t i) const { return node_.output(i) != nullptr; }
  void out(size_t i, NodeArg* value) { results_.at(i) = value; }
  NodeArg* emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes = {});
  std::vector<NodeArg*> emit_n(const std::string& op, const std::vector<NodeArg*>& inputs, size_t outputs,
                               Attributes attributes = {});
  NodeArg* ints(const std::vector<int64_t>& values);
  NodeArg* scalar_int(int64_t value);
  NodeArg* scalar(double value, const NodeArg* like);
  const std::vector<NodeArg*>& results() const { return results_; }

 private:
  Graph& graph_;
  Node& node_;
  std::vector<NodeArg*> results_;
};

// Splits "domain::Op" (no domain: ai.onnx).
std::pair<std::string, std::string> split_op(const std::string& qualified);

}  // namespace ortmodule

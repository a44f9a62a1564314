// Nodes of older opsets, rewritten into today's form right after import.
//
// The rule for an operator stands on its record: OpRecord::older(first, last, rule). A rule sees the node as the model
// has it, moves attributes to inputs, wraps it in other operators, and leaves a node of the record's form. After
// upgrade() the graph is one of opset kUpgradedOpset or later, and nothing behind it knows that older forms exist.
//
// Not here: which operators have older forms, and what differs; ask the records.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

constexpr int64_t kUpgradedOpset = 23;

// What a rule sees. Types are there as far as the model's inputs are typed; a rule works without them or says
// unsupported().
class UpgradeContext {
 public:
  UpgradeContext(Node& node, int64_t opset) : node_(&node), opset_(opset), attributes_(node.attributes()) {}

  int64_t opset() const { return opset_; }
  const Node& node() const { return *node_; }
  NodeArg* I(size_t i) const { return node_->input(i); }
  bool wants(size_t i) const { return node_->output(i) != nullptr; }
  // The type of input `i`, float while it is not known.
  DType dtype(size_t i) const;
  // Null when the rank is unknown.
  const Shape* shape(size_t i) const;

  // Takes an attribute off the node.
  std::optional<std::vector<int64_t>> take_ints(const std::string& name);
  std::optional<int64_t> take_int(const std::string& name);
  std::optional<double> take_float(const std::string& name);
  std::optional<std::vector<double>> take_floats(const std::string& name);
  void drop(const std::string& name) { take(name); }
  void set(const std::string& name, AttributeValue value) { attributes_[name] = std::move(value); }
  const Attributes& attributes() const { return attributes_; }

  // -- emitting, before the node -----------------------------------------------------------------------------------
  NodeArg* emit(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes = {});
  NodeArg* ints(const std::vector<int64_t>& values);   // int64[n] constant
  NodeArg* floats(const std::vector<double>& values);  // float[n] constant
  NodeArg* scalar(double value, DType dtype);

  // `op` on `inputs` takes the node's place, outputs and uses; the short form keeps operator and remaining attributes.
  // The last thing a rule does: node() is the new one then.
  void rewrite(const std::vector<NodeArg*>& inputs) { rewrite(node_->op(), inputs, attributes_); }
  void rewrite(const std::string& op, const std::vector<NodeArg*>& inputs, Attributes attributes);
  // kUnsupported with the operator, the node, its opset and the versions that work.
  [[noreturn]] void unsupported(const std::string& what) const;
  Node& result() const { return *node_; }

 private:
  std::optional<AttributeValue> take(const std::string& name);

  Node* node_;
  int64_t opset_;
  Attributes attributes_;
};

// Rules that several operators share.
void upgrade_ints_to_input(UpgradeContext& c, const char* attribute);  // becomes the input behind the present ones
void upgrade_axes(UpgradeContext& c);                                  // the attribute `axes`
// Binary operators before opset 7: B broadcasts from the axis `axis` of A on, and only where `broadcast` says so.
void upgrade_axis_broadcast(UpgradeContext& c);
// Softmax and the like before opset 13: over all axes from `axis` (1 when absent) on together.
void upgrade_flattened_axis(UpgradeContext& c);
// PRelu before opset 7: a slope of rank 1 belongs to the channels, not to the last axis.
void upgrade_channel_slope(UpgradeContext& c);

// Rewrites every node whose form is older and raises the graph's opset, in subgraphs and functions too.
// Throws kUnsupported for an operator that is known, but not at the graph's opset.
void upgrade(Graph& graph);

}  // namespace ortmodule

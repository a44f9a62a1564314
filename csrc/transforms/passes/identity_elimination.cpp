// Removes nodes whose output equals their input: Identity, what is one once the gradient is built (StopGradient,
// WithValue), Cast to the same type and back from a wider one, Transpose by the identity and pairs of Transposes,
// Reshape and Expand to the same shape, Reshape of a Reshape, Slice of everything, Dropout that drops nothing, Expand
// in front of operators that broadcast.
//
// Why: each is a kernel call and a row in the plan; capture emits many (clone, contiguous, expand). A node whose output
// is a graph output stays: names of outputs are part of the interface, and the caller's tensors must not come back as
// results. Shapes are equal when their symbolic dims are, so that nothing here depends on one batch size.
#include <algorithm>
#include <numeric>

#include "records/registry.h"
#include "records/shared_operands.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

bool same_shape(const NodeArg* a, const NodeArg* b) {
  return a && b && a->type().shape && b->type().shape && *a->type().shape == *b->type().shape;
}

bool all_ints_are(const NodeArg* value, int64_t wanted) {
  if (!value) return true;  // an absent input has its neutral default
  if (!value->constant() || !is_integer(value->type().dtype)) return false;
  const std::vector<int64_t> ints = value->constant()->to_ints();
  return std::all_of(ints.begin(), ints.end(), [&](int64_t i) { return i == wanted; });
}

// A node that is replaced by its first input.
class BypassRule : public RewriteRule {
 public:
  bool match(const Node& node, const TransformContext& context) const final {
    const NodeArg* out = node.output(0);
    if (!node.input(0) || !out || out->is_graph_output()) return false;
    for (size_t i = 1; i < node.outputs().size(); ++i)
      if (node.output(i) && (!node.output(i)->uses().empty() || node.output(i)->is_graph_output())) return false;
    return is_identity(node, context);
  }
  void rewrite(Graph& graph, Node& node, const TransformContext&) const final {
    graph.replace_all_uses(node.output(0), node.input(0));
    graph.remove(&node);
  }
  virtual bool is_identity(const Node& node, const TransformContext& context) const = 0;
};

class IdentityRule : public BypassRule {
 public:
  const char* name() const override { return "identity"; }
  std::vector<std::string> ops() const override {
    return {"Identity", "ai.ortmodule::StopGradient", "ai.ortmodule::WithValue"};
  }
  bool is_identity(const Node& node, const TransformContext& context) const override {
    return node.op() == "Identity" || !context.training;
  }
};

// A copy keeps what backward reads from who writes its source between the halves. Nobody has anything of the graph but
// its inputs and outputs.
class IdleCopy : public BypassRule {
 public:
  const char* name() const override { return "idle_copy"; }
  std::vector<std::string> ops() const override { return {"ai.ortmodule::Copy"}; }
  bool is_identity(const Node& node, const TransformContext& context) const override {
    if (context.stage != PassStage::kForward || node.get_int("of_input", 0) == 0) return false;
    return !context.training || shown_inputs(node.input(0)).empty();
  }
};

class SameTypeCast : public BypassRule {
 public:
  const char* name() const override { return "same_type_cast"; }
  std::vector<std::string> ops() const override { return {"Cast"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    const DType from = node.input(0)->type().dtype;
    return from != DType::kUndefined && node.get_int("to", 0) == static_cast<int64_t>(from);
  }
};

class SameShape : public BypassRule {
 public:
  const char* name() const override { return "same_shape"; }
  std::vector<std::string> ops() const override { return {"Reshape", "Expand"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    return same_shape(node.input(0), node.output(0));
  }
};

// The standard's elementwise operators broadcast: where another input has the whole shape, they need no Expand of this
// one. The gradient of a mean expands what a product with the rows follows, for one.
class BroadcastExpand : public BypassRule {
 public:
  const char* name() const override { return "broadcast_expand"; }
  std::vector<std::string> ops() const override { return {"Expand"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    const NodeArg* out = node.output(0);
    if (!out->type().shape || !node.input(0)->type().shape || out->uses().empty()) return false;
    return std::all_of(out->uses().begin(), out->uses().end(),
                       [&](const Use& use) { return broadcasts(*use.node, out); });
  }

 private:
  static bool broadcasts(const Node& reader, const NodeArg* expanded) {
    // Those that the fusion pass knows take any mix of shapes, unlike PRelu.
    if (!reader.domain().empty() || !reader.record()->has(kElementwise) || !reader.record()->fusion_fn()) return false;
    return same_shape(expanded, reader.output(0)) &&
           std::any_of(reader.inputs().begin(), reader.inputs().end(),
                       [&](const NodeArg* in) { return in != expanded && same_shape(in, expanded); });
  }
};

// Steps of 1 and an output of the input's size leave only "everything".
class WholeSlice : public BypassRule {
 public:
  const char* name() const override { return "whole_slice"; }
  std::vector<std::string> ops() const override { return {"Slice"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    return same_shape(node.input(0), node.output(0)) && all_ints_are(node.input(4), 1);
  }
};

class IdleDropout : public BypassRule {
 public:
  const char* name() const override { return "idle_dropout"; }
  std::vector<std::string> ops() const override { return {"Dropout"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    const NodeArg *ratio = node.input(1), *mode = node.input(2);
    if (!mode || (mode->constant() && mode->constant()->to_ints() == std::vector<int64_t>{0})) return true;
    return ratio && ratio->constant() && ratio->constant()->to_doubles() == std::vector<double>{0.0};
  }
};

std::vector<int64_t> permutation(const Node& node) {
  std::vector<int64_t> perm = node.get_ints("perm");
  const auto& shape = node.input(0)->type().shape;
  if (perm.empty() && shape) {
    perm.resize(shape->size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  return perm;
}

bool is_identity_permutation(const std::vector<int64_t>& perm) {
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return !perm.empty();
}

class IdentityTranspose : public BypassRule {
 public:
  const char* name() const override { return "identity_transpose"; }
  std::vector<std::string> ops() const override { return {"Transpose"}; }
  bool is_identity(const Node& node, const TransformContext&) const override {
    return is_identity_permutation(permutation(node));
  }
};

// A node behind another of the same operator that can read the first one's input instead.
class ChainRule : public RewriteRule {
 public:
  bool match(const Node& node, const TransformContext&) const final {
    const NodeArg* in = node.input(0);
    const Node* first = in ? in->producer() : nullptr;
    return first && node.output(0) && first->op() == node.op() && first->domain() == node.domain() && first->input(0) &&
           first->phase() == node.phase() && joins(*first, node);
  }
  virtual bool joins(const Node& first, const Node& second) const = 0;
};

class TransposeChain : public ChainRule {
 public:
  const char* name() const override { return "transpose_chain"; }
  std::vector<std::string> ops() const override { return {"Transpose"}; }
  bool joins(const Node& first, const Node& second) const override {
    return !permutation(first).empty() && permutation(first).size() == permutation(second).size();
  }
  void rewrite(Graph&, Node& node, const TransformContext&) const override {
    const std::vector<int64_t> inner = permutation(*node.input(0)->producer());
    std::vector<int64_t> perm = permutation(node);
    for (int64_t& axis : perm) axis = inner.at(static_cast<size_t>(axis));
    node.set_input(0, node.input(0)->producer()->input(0));
    node.set_attribute("perm", std::move(perm));
  }
};

class ReshapeChain : public ChainRule {
 public:
  const char* name() const override { return "reshape_chain"; }
  std::vector<std::string> ops() const override { return {"Reshape"}; }
  bool joins(const Node&, const Node& second) const override {
    // A 0 that copies a dim of the input would mean another dim.
    if (second.get_int("allowzero", 0) != 0) return true;
    const TensorData* sizes = second.input(1) ? second.input(1)->constant() : nullptr;
    if (!sizes) return false;
    const std::vector<int64_t> ints = sizes->to_ints();
    return std::find(ints.begin(), ints.end(), 0) == ints.end();
  }
  void rewrite(Graph&, Node& node, const TransformContext&) const override {
    node.set_input(0, node.input(0)->producer()->input(0));
  }
};

bool widens(DType from, DType to) {
  switch (from) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return to == DType::kFloat || to == DType::kDouble;
    case DType::kFloat:
      return to == DType::kDouble;
    case DType::kBool:
      return is_integer(to) || is_floating(to);
    case DType::kInt32:
      return to == DType::kInt64 || to == DType::kDouble;
    case DType::kInt16:
      return to == DType::kInt32 || to == DType::kInt64 || to == DType::kFloat || to == DType::kDouble;
    default:
      return false;
  }
}

// Cast to a wider type: a Cast behind it gives what it would give straight from the narrow one.
class CastChain : public ChainRule {
 public:
  const char* name() const override { return "cast_chain"; }
  std::vector<std::string> ops() const override { return {"Cast"}; }
  bool joins(const Node& first, const Node& second) const override {
    const DType from = first.input(0)->type().dtype;
    return widens(from, first.output(0)->type().dtype) && second.get_int("to", 0) != 0;
  }
  void rewrite(Graph&, Node& node, const TransformContext&) const override {
    node.set_input(0, node.input(0)->producer()->input(0));
  }
};

}  // namespace

ORTMODULE_RULES("identity_elimination", PassLevel::kBasic, kBothStages, pass_place::kCleanUp, IdentityRule, IdleCopy,
                CastChain, SameTypeCast, TransposeChain, IdentityTranspose, ReshapeChain, SameShape, BroadcastExpand,
                WholeSlice, IdleDropout);

}  // namespace ortmodule

#include "records/subgraphs/subgraph_types.h"

#include <algorithm>
#include <cctype>

#include "base/container_type.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "records/infer_context.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

// Different texts give different names; the same text gives the same name at each inference.
std::string inner_name(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out = "c_";
  for (const char ch : text) {
    const auto byte = static_cast<unsigned char>(ch);
    if (std::isalnum(byte))
      out += ch;
    else
      (out += '_') += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

}  // namespace

BodyTypes::BodyTypes(InferContext& c, const char* attribute, size_t formals)
    : c_(c), attribute_(attribute), graph_(find_subgraph(c.node(), attribute).get()), formals_(formals) {
  if (!graph_) c.error(str("the attribute '", attribute, "' holds no graph"));
  const size_t takes = formal_input_count(c.node(), *graph_);
  if (takes != formals) c.error(str("the graph '", attribute, "' takes ", takes, " inputs, the node gives ", formals));
}

TypeInfo BodyTypes::inward(const TypeInfo& outer) {
  TypeInfo inner = outer;
  if (!inner.shape) return inner;
  for (Dim& d : *inner.shape) {
    if (d.is_known()) continue;
    const std::string name = inner_name(d.text());
    outer_.emplace(name, d);
    d = Dim::symbol(name);
  }
  return inner;
}

void BodyTypes::infer() {
  const Node& node = c_.node();
  const std::vector<std::string> names = node.get_strings(kCapturedAttribute);
  const size_t first = explicit_input_count(node);
  const auto& inputs = graph_->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i < formals_.size()) {
      inputs[i]->set_type(formals_[i]);
      continue;
    }
    const auto at = std::find(names.begin(), names.end(), inputs[i]->name());
    if (at == names.end())
      c_.error(str("the input '", inputs[i]->name(), "' of graph '", attribute_, "' has no value"));
    const NodeArg* value = node.input(first + static_cast<size_t>(at - names.begin()));
    if (value) inputs[i]->set_type(inward(value->type()));
    if (value) inputs[i]->set_known_dims(std::nullopt);
  }
  // What an earlier inference found is no declaration: other inputs give other types.
  graph_->for_each([](Node& inner) {
    for (NodeArg* out : inner.outputs()) {
      if (!out) continue;
      out->set_type({});
      out->set_known_dims(std::nullopt);
    }
  });
  resolve(*graph_);
}

TypeInfo BodyTypes::outward(size_t i, size_t slot) const {
  TypeInfo type = output(i);
  if (!type.shape) return type;
  for (size_t axis = 0; axis < type.shape->size(); ++axis) {
    Dim& d = (*type.shape)[axis];
    if (d.is_known()) continue;
    const auto symbol = d.lone_symbol();
    const auto it = symbol ? outer_.find(*symbol) : outer_.end();
    d = it != outer_.end() ? it->second : output_dim(c_, slot, axis);
  }
  return type;
}

bool BodyTypes::generalize(size_t formal, size_t output) {
  TypeInfo& have = formals_[formal];
  const TypeInfo& next = graph_->outputs()[output]->type();
  bool changed = false;
  const DType joined = join_types(have.dtype, next.dtype);
  if (joined == DType::kUndefined && have.dtype != DType::kUndefined)
    c_.error(str("the value '", graph_->inputs()[formal]->name(), "' is of type ", dtype_name(have.dtype),
                 " before an iteration and of type ", dtype_name(next.dtype), " after it"));
  if (joined != have.dtype) {
    have.dtype = joined;
    changed = true;
  }
  if (!have.shape) return changed;
  if (!next.shape || next.shape->size() != have.shape->size()) {
    have.shape = std::nullopt;
    return true;
  }
  for (size_t axis = 0; axis < have.shape->size(); ++axis) {
    Dim& d = (*have.shape)[axis];
    const Dim varying = Dim::symbol(str("l_", formal, "_", axis));
    if (d == (*next.shape)[axis] || d == varying) continue;
    d = varying;
    changed = true;
  }
  return changed;
}

void BodyTypes::reach_fixed_point(const std::vector<size_t>& formals, const std::vector<size_t>& outputs) {
  // Each round gives up a dim, a shape or a type, so that the rounds are bounded; few are ever needed.
  constexpr int kRounds = 64;
  for (int round = 0; round < kRounds; ++round) {
    infer();
    bool changed = false;
    for (size_t k = 0; k < formals.size(); ++k) changed = generalize(formals[k], outputs[k]) || changed;
    if (!changed) return;
  }
  for (const size_t i : formals) formals_[i].shape = std::nullopt;
  infer();
}

Dim output_dim(const InferContext& c, size_t output, size_t axis) {
  return Dim::symbol(str("u_", c.node().id(), "_", output, "_", axis));
}

TypeInfo join(const InferContext& c, size_t output, const TypeInfo& a, const TypeInfo& b) {
  const DType dtype = join_types(a.dtype, b.dtype);
  if (dtype == DType::kUndefined && a.dtype != DType::kUndefined)
    c.error(str("output ", output, " is ", dtype_name(a.dtype), " in one branch and ", dtype_name(b.dtype),
                " in the other"));
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return {dtype, std::nullopt};
  Shape shape = *a.shape;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] != (*b.shape)[axis]) shape[axis] = output_dim(c, output, axis);
  return {dtype, std::move(shape)};
}

}  // namespace ortmodule

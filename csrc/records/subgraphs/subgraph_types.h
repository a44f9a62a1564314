// Type inference of a node's subgraph: outer types in, the body's own types out.
//
// Note [Symbols of subgraphs]
// Rules name the sizes they invent after node ids, which are unique in one graph only. So a symbolic dim of the outer
// graph enters a body under a name of its own, "c_<text>", is bound there from the shape of the body's input, and
// leaves it as the dim it was. Any other symbol of a body leaves it as a fresh one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

class InferContext;

class BodyTypes {
 public:
  // Throws kInvalidGraph unless the attribute holds a graph with at least `formals` inputs.
  BodyTypes(InferContext& c, const char* attribute, size_t formals);

  const Graph& graph() const { return *graph_; }
  size_t output_count() const { return graph_->outputs().size(); }

  // An outer type as a body sees it; remembers the names of its symbols.
  TypeInfo inward(const TypeInfo& outer);
  // The type of formal input i, in the body's symbols.
  void set_formal(size_t i, TypeInfo inner) { formals_[i] = std::move(inner); }
  const TypeInfo& formal(size_t i) const { return formals_[i]; }
  // Infers the whole body anew. Throws what resolve() throws, and kInvalidGraph for a captured input without a value.
  void infer();
  const TypeInfo& output(size_t i) const { return graph_->outputs()[i]->type(); }
  // The type of body output i in the outer graph's symbols; `slot` is the node's output that gets it.
  TypeInfo outward(size_t i, size_t slot) const;

  // Carried values: after infer(), generalizes formal `formals[k]` until body output `outputs[k]` fits into it; each
  // round infers anew. Throws kInvalidGraph when the types cannot agree.
  void reach_fixed_point(const std::vector<size_t>& formals, const std::vector<size_t>& outputs);

 private:
  bool generalize(size_t formal, size_t output);

  InferContext& c_;
  std::string attribute_;
  Graph* graph_;
  std::vector<TypeInfo> formals_;
  std::map<std::string, Dim> outer_;  // inner symbol -> the dim outside
};

// A dim that only the run knows, unique to an axis of a node's output.
Dim output_dim(const InferContext& c, size_t output, size_t axis);
// The type of a value that is either a or b; dims that differ become output_dim's. Throws kInvalidGraph for two types
// that have none in common.
TypeInfo join(const InferContext& c, size_t output, const TypeInfo& a, const TypeInfo& b);

}  // namespace ortmodule

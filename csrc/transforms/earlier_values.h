// What a node that backward runs again reads of the caller's memory: what was there when forward ran.
//
// Note [Then and now]
// Graph inputs, and views of them, are the caller's memory: weights, a batch. Until backward they may be written, also
// where no version counts that (`.data`), or where eager does not mind because it has kept nothing of them (a bias).
// Eager's gradients read such memory itself where a formula has it as an operand, so that they see what was written;
// what eager computed of it and kept stays as it was. So here: a gradient's own operand is read where it lies, and a
// node that runs again reads a copy, which forward makes. Copies are few and small, for the cut (recompute.h) counts
// them among what is kept.
//
// Read where they lie all the same: by views, which are that memory again; integers, which are indices and sizes; and
// what only a budget repeats, products and autocast's copies, whose operands are as large as what they make: these see
// what was written, as with torch.utils.checkpoint.
#pragma once

#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

class EarlierValues {
 public:
  // Types must be inferred.
  explicit EarlierValues(Graph& graph);

  // Whether `node`, run again, reads a copy of its input `value`.
  bool reads_copy(const Node& node, const NodeArg* value) const;
  // The copy of such an input: a node of forward, made when it is asked for first.
  NodeArg* copy_of(NodeArg* value);

 private:
  bool is_outside(const NodeArg* value) const { return value->id() < outside_.size() && outside_[value->id()]; }

  Graph& graph_;
  std::vector<char> outside_;  // by value id
  std::unordered_map<const NodeArg*, NodeArg*> copies_;
};

// Whether it makes the narrow copy that autocast has of a weight, or of a batch: one per step, as PyTorch makes it.
bool is_autocast_copy(const Node& node);
// Whether it makes a copy_of() a graph input.
bool is_earlier_input(const Node& node);

}  // namespace ortmodule

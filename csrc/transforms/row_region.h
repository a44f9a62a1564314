// Nodes that compute each row from the same row of their inputs, repeated on compact rows: what label_compaction.cpp
// and padding_removal.cpp share, which decide which nodes to repeat. How rows pass through an operator stands on its
// record (records/row_rule.h).
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "records/row_rule.h"
#include "transforms/transformer.h"

namespace ortmodule {

// The roles of the node's inputs when the outputs have `lead` leading dims; nothing when it is not row-wise.
RowRule::Inputs row_inputs(const Node& node, size_t lead);

// Where its inputs have the batch and the sequence axis, when they are known for its output.
InputAxes input_axes(const Node& node, RowAxes axes);

// Multiplications and additions of a matrix product per row; 0 for other operators.
int64_t products_per_row(const Node& node);

// A Slice with step 1 along the last leading dim alone, which keeps some rows: the first kept position.
std::optional<int64_t> sliced_rows_start(const Node& node, size_t lead);

// Whether the dims can be computed from the sizes of graph inputs.
bool bound_dims(const Graph& graph, const Shape& dims);
// int64[n] in host memory.
NodeArg* sizes_value(Graph& graph, const Shape& dims, Node* before);

// Compact forms of values over one or several lists of rows.
class CompactRows {
 public:
  explicit CompactRows(Graph& graph) : graph_(graph) {}

  // The compact form of a value over `rows`: made by repeat(), or gathered from the whole.
  NodeArg* of(NodeArg* value, size_t lead, NodeArg* rows, Node* before);
  bool has(const NodeArg* value, const NodeArg* rows) const { return made_.count({value, rows}) > 0; }
  // Repeats a node whose roles are `inputs` on compact rows, in front of itself.
  void repeat(Node& node, size_t lead, const std::vector<RowInput>& inputs, NodeArg* rows);
  void set(const NodeArg* value, const NodeArg* rows, NodeArg* compact) { made_[{value, rows}] = compact; }

  NodeArg* emit(const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes, Node* before);

 private:
  NodeArg* broadcast_rows(NodeArg* value, const Shape& lead_dims, size_t rest, NodeArg* rows, Node* before);

  Graph& graph_;
  std::map<std::pair<const NodeArg*, const NodeArg*>, NodeArg*> made_, gathered_;
};

}  // namespace ortmodule

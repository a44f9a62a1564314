#include "transforms/earlier_values.h"

#include <algorithm>
#include <string>

#include "base/dtype.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/parts.h"

namespace ortmodule {
namespace {

constexpr const char* kMark = "then";  // of such a node's metadata

bool holds_numbers(const NodeArg& value) { return !is_integer(value.type().dtype) && dtype_size(value.type().dtype); }

// The head of the graph where there is no node.
Node* behind(const Graph& graph, const Node* node) {
  const std::vector<Node*> nodes = graph.nodes();
  if (!node) return nodes.front();
  const auto it = std::find(nodes.begin(), nodes.end(), node) + 1;
  return it == nodes.end() ? nullptr : *it;
}

}  // namespace

EarlierValues::EarlierValues(Graph& graph) : graph_(graph), outside_(graph.value_id_bound(), 0) {
  for (const NodeArg* input : graph.inputs()) outside_[input->id()] = holds_numbers(*input);
  graph.for_each([&](const Node& node) {
    const OpRecord& record = *node.record();
    if (node.phase() != Phase::kForward || record.has(kCollective) || !record.shares_memory(node)) return;
    for (const NodeArg* part : node.outputs())
      if (part) outside_[part->id()] = is_outside(node.input(0));
  });
}

bool EarlierValues::reads_copy(const Node& node, const NodeArg* value) const {
  const OpRecord& record = *node.record();
  const bool now = record.shares_memory(node) || record.flops_fn() || record.has(kCollective) || is_autocast_copy(node);
  return !now && is_outside(value);
}

NodeArg* EarlierValues::copy_of(NodeArg* value) {
  NodeArg*& copy = copies_[value];
  if (copy) return copy;
  // The same name in each graph of a model, so that a backward for some outputs finds what forward has kept.
  const std::string name = value->name() + "_then";
  const NodeArg* taken = graph_.find(name);
  Node* node = graph_.add_node("ai.ortmodule", "Copy", {value}, {taken ? graph_.fresh_name(name) : name}, {},
                               behind(graph_, value->producer()), graph_.fresh_name(name));
  node->metadata()[kMark] = "1";
  infer_node(*node);
  copy = node->output(0);
  copy->set_type(value->type());
  copy->set_known_dims(value->known_dims());
  return copy;
}

bool is_autocast_copy(const Node& node) {
  return node.metadata().contains("autocast") && node.input(0)->is_graph_input();
}

bool is_earlier_input(const Node& node) { return node.metadata().contains(kMark) && node.input(0)->is_graph_input(); }

}  // namespace ortmodule

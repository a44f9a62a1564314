// A node taken apart: new nodes where it stood, which make its values under their own names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {

inline bool is(const Node* node, const char* domain, const char* op) {
  return node && node->op() == op && node->domain() == domain;
}

// Whether a program can express the node.
inline bool fuses(const Node* node) { return node && node->record() && node->record()->fusion_fn(); }

// A node before `origin`, of its half of the step, with its types.
inline Node* added_before(Graph& graph, const char* domain, const char* op, const std::vector<NodeArg*>& inputs,
                          size_t outputs, Attributes attributes, Node& origin) {
  Node* node = graph.add_node(domain, op, inputs, std::vector<std::string>(outputs), std::move(attributes), &origin,
                              graph.fresh_name(origin.name() + "_part"));
  node->metadata() = origin.metadata();
  node->set_phase(origin.phase());
  infer_node(*node);
  return node;
}

// `to` makes the value in place of its producer.
inline void hand_over(Graph& graph, NodeArg* value, Node* to, size_t index) {
  graph.drop_output(to, index);  // what stood there
  graph.move_output(value, to, index);
}

}  // namespace ortmodule

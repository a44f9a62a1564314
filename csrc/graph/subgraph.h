// Conventions for nodes with subgraphs (If, Loop, Scan, SequenceMap) and for bodies of functions.
//
// Note [Captured values]
// A subgraph of ONNX may read any value of the graphs around it by name. In memory such a value is an ordinary input on
// both sides: the node's last inputs are the outer values, and a subgraph has an input for each that it reads, after
// its formal inputs. The attribute kCapturedAttribute lists their inner names in the order of the node's inputs; an
// absent one is read by no subgraph any more. So passes, plans and lifetimes see every edge, and a subgraph is a graph
// like any other.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

// Node attribute (strings): the inner names of the captured values; see the Note.
constexpr const char* kCapturedAttribute = "ortmodule.captured";
// Node metadata in function bodies: "ortmodule.ref.<attribute>" -> "<type number> <formal attribute>".
constexpr const char* kReferencePrefix = "ortmodule.ref.";
// Node metadata on a call of a function with an overload name.
constexpr const char* kOverloadKey = "ortmodule.overload";

inline bool has_body(const Node& node) {
  return std::any_of(node.attributes().begin(), node.attributes().end(),
                     [](const auto& entry) { return std::holds_alternative<std::shared_ptr<Graph>>(entry.second); });
}

// The node's inputs that its operator's schema knows; captured ones follow.
inline size_t explicit_input_count(const Node& node) {
  const size_t captured = node.get_strings(kCapturedAttribute).size();
  return node.inputs().size() - std::min(captured, node.inputs().size());
}

// The subgraph's inputs that its operator gives; they stand in front of the captured ones.
inline size_t formal_input_count(const Node& node, const Graph& body) {
  const std::vector<std::string> names = node.get_strings(kCapturedAttribute);
  size_t count = 0;
  for (const NodeArg* in : body.inputs()) count += std::find(names.begin(), names.end(), in->name()) == names.end();
  return count;
}

// Calls f(name, graph) for each subgraph of a node.
template <typename F>
void for_each_subgraph(const Node& node, F&& f) {
  for (const auto& [name, value] : node.attributes())
    if (const auto* body = std::get_if<std::shared_ptr<Graph>>(&value)) f(name, **body);
}

// The subgraph called `name`, or null.
inline std::shared_ptr<Graph> find_subgraph(const Node& node, const std::string& name) {
  const AttributeValue* value = node.find_attribute(name);
  const auto* body = value ? std::get_if<std::shared_ptr<Graph>>(value) : nullptr;
  return body ? *body : nullptr;
}

}  // namespace ortmodule

// What each pass and each stage of a compilation did to a graph, node by node: what tools show of it.
//
// A node that changes is kept in every version that it had; an event says which versions went, came or took the place
// of another. So the graph before and after any event can be told, at the cost of what changed.
// Passes over a body of control flow are told as a change of the node that holds the body.
// Not here: values. Of a tensor's elements only those of small integer tensors and of float scalars are kept.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transforms/transformer.h"

namespace ortmodule {

// A node as it was from one event to another.
struct NodeVersion {
  size_t node;  // Node::id
  std::string op, name, provider;
  Phase phase;
  std::vector<std::string> inputs;                              // names; empty: absent
  std::vector<std::pair<std::string, std::string>> outputs;     // name and type as text
  std::vector<std::pair<std::string, std::string>> attributes;  // name and value as text
  std::map<std::string, std::string> metadata;
  bool operator==(const NodeVersion&) const = default;
};

struct GraphEvent {
  std::string stage, pass;  // no pass: the stage is done
  int round = 0;
  double seconds = 0;  // of the pass, or of the whole stage
  size_t modifications = 0, nodes = 0;
  std::vector<size_t> removed;                      // versions
  std::vector<std::pair<size_t, size_t>> replaced;  // the version before and after, of one node
  std::vector<std::pair<size_t, long>> added;       // the version, and the node that it stands behind; -1: at the front
  std::vector<size_t> order;         // of all nodes, where those that stayed do not stand in one order as before
  std::vector<std::string> outputs;  // of the graph, where they are others than before
};

// An input of the graph or a constant, at any time.
struct GraphSource {
  std::string name, type;
  bool constant;
  std::string text;  // of a small constant
};

class GraphHistory : public PassListener {
 public:
  explicit GraphHistory(std::shared_ptr<PassListener> next = nullptr) : next_(std::move(next)) {}

  void before(const PassRun& run, const Graph& graph) override;
  void after(const PassRun& run, const Graph& graph) override;
  // A stage is done. The first one's graph is the one that is followed.
  void stage(const std::string& name, double seconds, const Graph& graph);
  // What comes later is of other graphs, and only passed on.
  void close() { closed_ = true; }

  const std::vector<NodeVersion>& versions() const { return versions_; }
  const std::vector<GraphEvent>& events() const { return events_; }
  const std::vector<GraphSource>& sources() const { return sources_; }

 private:
  // Adds what differs from the last event's graph to `event`, and the event to the list; a pass after which nothing
  // differs is left out.
  void note(GraphEvent event);
  void note_sources();

  const std::shared_ptr<PassListener> next_;
  const Graph* graph_ = nullptr;
  bool closed_ = false;
  std::vector<NodeVersion> versions_;
  std::vector<GraphEvent> events_;
  std::vector<GraphSource> sources_;
  std::map<std::string, size_t> source_places_;
  std::map<size_t, size_t> current_;  // node -> its version
  std::vector<size_t> order_;
  std::vector<std::string> outputs_;
};

}  // namespace ortmodule

#include "transforms/split_collectives.h"

#include <algorithm>
#include <deque>
#include <unordered_set>
#include <vector>

#include "graph/value_bytes.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

bool is_collective(const Node& node) {
  return node.record() && node.record()->has(kCollective) && node.op() != "CollectiveWait";
}

// Puts the nodes of one half into an order in which collectives overlap with the rest.
class Overlap {
 public:
  Overlap(Graph& graph, const SymbolTable& sizes, double window) : graph_(graph), sizes_(sizes), window_(window) {}

  void add(Node* node) {
    if (is_collective(*node) && !node->get_int("async", 0))
      queue_.push_back(node);
    else
      others_.push_back(node);
  }

  // Appends the half's nodes, waits among them, to `order`.
  void finish(std::vector<Node*>& order, size_t& split) {
    for (const Node* node : queue_) unstarted_.insert(node);
    for (Node* node : others_) left_.insert(node);
    for (Node* node : others_) {
      for (const NodeArg* in : node->inputs())
        if (in && in->producer()) need(in->producer());
      start_what_can();
      emit(node);
    }
    while (!queue_.empty()) start(queue_.front());
    while (!flying_.empty()) wait(flying_.front());
    order.insert(order.end(), order_.begin(), order_.end());
    split += waits_;
  }

 private:
  // What a node reads must be there: collectives before it, waited for.
  void need(Node* maker) {
    const auto flying = std::find(flying_.begin(), flying_.end(), maker);
    if (flying != flying_.end()) return wait(maker);
    if (!unstarted_.count(maker)) return;
    while (unstarted_.count(maker)) start(queue_.front());
    wait(maker);
  }

  bool is_ready(const Node& node) const {
    return std::all_of(node.inputs().begin(), node.inputs().end(), [&](const NodeArg* in) {
      Node* maker = in ? in->producer() : nullptr;
      if (!maker || maker->phase() != node.phase()) return true;
      const bool on_its_way = std::find(flying_.begin(), flying_.end(), maker) != flying_.end();
      return !left_.count(maker) && !unstarted_.count(maker) && !on_its_way;
    });
  }

  void start_what_can() {
    for (Node* next = ready_one(); next; next = ready_one()) {
      if (!runs_ahead(*next) && !make_room(bytes_of(*next))) return;
      start(next);
    }
  }

  // The first in the queue, if its operand is there; else a gather that may run ahead of it.
  Node* ready_one() const {
    if (queue_.empty()) return nullptr;
    if (Node* first = queue_.front(); is_ready(*first) && (!runs_ahead(*first) || fits_ahead(*first))) return first;
    for (Node* node : queue_)
      if (runs_ahead(*node)) return fits_ahead(*node) && is_ready(*node) ? node : nullptr;
    return nullptr;
  }

  // Of what is divided among the ranks: its sizes do not depend on the call, so that all ranks overtake alike.
  bool runs_ahead(const Node& node) const { return window_of(node) > 0 && node.input(0)->is_graph_input(); }
  bool fits_ahead(const Node& node) const {
    return ahead_ == 0 || ahead_ + bytes_of(node) <= static_cast<double>(window_of(node));
  }
  static int64_t window_of(const Node& node) { return node.get_int("window", 0); }

  // Of what nobody in this half reads the oldest is waited for.
  bool make_room(double bytes) {
    const auto oldest = [&] {
      return std::find_if(flying_.begin(), flying_.end(), [&](Node* node) { return !runs_ahead(*node); });
    };
    while (in_flight_ > 0 && in_flight_ + bytes > window_) {
      const auto first = oldest();
      if (is_read_later(**first)) return false;
      wait(*first);
    }
    return true;
  }

  bool is_read_later(const Node& node) const {
    const std::vector<Use>& uses = node.output(0)->uses();
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.node->phase() == node.phase(); });
  }

  // What it reads may be on its way itself.
  void start(Node* node) {
    for (const NodeArg* in : node->inputs())
      if (in && std::find(flying_.begin(), flying_.end(), in->producer()) != flying_.end()) wait(in->producer());
    queue_.erase(std::find(queue_.begin(), queue_.end(), node));
    unstarted_.erase(node);
    flying_.push_back(node);
    (runs_ahead(*node) ? ahead_ : in_flight_) += bytes_of(*node);
    emit(node);
  }

  void wait(Node* node) {
    flying_.erase(std::find(flying_.begin(), flying_.end(), node));
    (runs_ahead(*node) ? ahead_ : in_flight_) -= bytes_of(*node);
    NodeArg* result = node->output(0);
    const TypeInfo type = result->type();
    Node* waiting = graph_.add_node("ai.ortmodule", "CollectiveWait", {node->input(0)}, {}, {}, nullptr,
                                    graph_.fresh_name(node->name() + "_wait"));
    waiting->set_phase(node->phase());
    waiting->place(node->provider(), node->device());
    waiting->metadata() = node->metadata();
    graph_.move_output(result, waiting, 0);
    NodeArg* started = graph_.materialize_output(node, 0, result->name() + "_started");
    started->set_type(type);
    started->set_location(result->location());
    waiting->set_input(0, started);
    node->set_attribute("async", int64_t{1});
    infer_node(*waiting);
    emit(waiting);
    ++waits_;
  }

  void emit(Node* node) {
    left_.erase(node);
    order_.push_back(node);
  }

  double bytes_of(const Node& node) const { return estimated_bytes(node.output(0)->type(), sizes_); }

  Graph& graph_;
  const SymbolTable& sizes_;
  const double window_;
  std::deque<Node*> queue_;    // collectives that have not been started, in order
  std::vector<Node*> others_;  // the rest, in order
  std::unordered_set<const Node*> unstarted_, left_;
  std::vector<Node*> flying_, order_;
  double ahead_ = 0, in_flight_ = 0;  // bytes on their way: of what runs ahead, of the rest
  size_t waits_ = 0;
};

}  // namespace

size_t split_collectives(Graph& graph, const SymbolTable& sizes, double window) {
  const std::vector<Node*> nodes = graph.nodes();
  if (std::none_of(nodes.begin(), nodes.end(), [](const Node* node) { return is_collective(*node); })) return 0;
  Overlap forward(graph, sizes, window), backward(graph, sizes, window);
  for (Node* node : nodes) (node->phase() == Phase::kForward ? forward : backward).add(node);
  std::vector<Node*> order;
  size_t split = 0;
  forward.finish(order, split);
  backward.finish(order, split);
  graph.reorder(order);
  return split;
}

}  // namespace ortmodule

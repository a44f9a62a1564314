#include "plan/node_order.h"

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/status.h"
#include "graph/subgraph.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

double bytes_of(const OrderFacts& facts, const NodeArg& value) {
  return value.id() < facts.bytes.size() ? facts.bytes[value.id()] : 0;
}

bool stays(const OrderFacts& facts, const NodeArg& value) {
  return value.id() < facts.stays.size() && facts.stays[value.id()];
}

// Which nodes wait for which, by their places in a list, and how many readers each value has there.
class Dependencies {
 public:
  explicit Dependencies(const std::vector<const Node*>& nodes) : nodes_(nodes), readers_(nodes.size()) {
    std::unordered_map<const Node*, size_t> place;
    for (size_t i = 0; i < nodes.size(); ++i) place[nodes[i]] = i;
    waiting_.assign(nodes.size(), 0);
    size_t before = nodes.size();  // the last one that keeps its order
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::set<size_t> makers;
      for (const NodeArg* in : nodes[i]->inputs()) {
        if (!in) continue;
        const auto maker = in->producer() ? place.find(in->producer()) : place.end();
        if (maker != place.end()) makers.insert(maker->second);
      }
      if (keeps_its_order(*nodes[i])) {
        if (before < nodes.size()) makers.insert(before);
        before = i;
      }
      waiting_[i] = makers.size();
      for (const size_t maker : makers) readers_[maker].push_back(i);
    }
  }

  std::vector<size_t> ready() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < waiting_.size(); ++i)
      if (!waiting_[i]) out.push_back(i);
    return out;
  }
  // Those that need not wait any more once this one has run.
  std::vector<size_t> done(size_t i) {
    std::vector<size_t> out;
    for (const size_t reader : readers_[i])
      if (--waiting_[reader] == 0) out.push_back(reader);
    return out;
  }

 private:
  const std::vector<const Node*>& nodes_;
  std::vector<std::vector<size_t>> readers_;
  std::vector<size_t> waiting_;
};

std::vector<const Node*> by_priority(const std::vector<const Node*>& nodes) {
  Dependencies dependencies(nodes);
  const auto rank = [&](size_t i) {
    const OpRecord* record = nodes[i]->record();
    const bool early = record && (record->has(kHostOutput) || record->has(kShapeOnly));
    return std::pair(early ? 0 : 1, i);
  };
  std::set<std::pair<int, size_t>> ready;
  for (const size_t i : dependencies.ready()) ready.insert(rank(i));
  std::vector<const Node*> out;
  while (!ready.empty()) {
    const size_t next = ready.begin()->second;
    ready.erase(ready.begin());
    out.push_back(nodes[next]);
    for (const size_t i : dependencies.done(next)) ready.insert(rank(i));
  }
  return out;
}

// Takes, of the nodes that could run, the one that leaves least behind.
class Greedy {
 public:
  Greedy(const std::vector<const Node*>& nodes, const OrderFacts& facts) : nodes_(nodes), facts_(facts) {
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const NodeArg* in : values_read(*nodes[i])) readers_left_[in].insert(i);
  }

  std::vector<const Node*> run() {
    Dependencies dependencies(nodes_);
    for (const size_t i : dependencies.ready()) offer(i);
    std::vector<const Node*> out;
    while (!ready_.empty()) {
      const size_t next = ready_.begin()->second;
      withdraw(next);
      out.push_back(nodes_[next]);
      for (const NodeArg* in : values_read(*nodes_[next])) {
        std::set<size_t>& left = readers_left_[in];
        left.erase(next);
        if (left.size() == 1) refresh(*left.begin());  // it frees the value now
      }
      for (const size_t i : dependencies.done(next)) offer(i);
    }
    return out;
  }

 private:
  static std::set<const NodeArg*> values_read(const Node& node) {
    std::set<const NodeArg*> values(node.inputs().begin(), node.inputs().end());
    values.erase(nullptr);
    return values;
  }

  // Bytes that are alive after the node beyond those before.
  double growth(size_t i) const {
    double bytes = 0;
    for (const NodeArg* out : nodes_[i]->outputs())
      if (out && (stays(facts_, *out) || !out->uses().empty())) bytes += bytes_of(facts_, *out);
    for (const NodeArg* in : values_read(*nodes_[i]))
      if (!stays(facts_, *in) && readers_left_.at(in).size() == 1) bytes -= bytes_of(facts_, *in);
    return bytes;
  }

  void offer(size_t i) {
    growth_[i] = growth(i);
    ready_.emplace(growth_[i], i);
  }
  void withdraw(size_t i) {
    ready_.erase({growth_[i], i});
    growth_.erase(i);
  }
  void refresh(size_t i) {
    if (!growth_.count(i)) return;
    withdraw(i);
    offer(i);
  }

  const std::vector<const Node*>& nodes_;
  const OrderFacts& facts_;
  std::unordered_map<const NodeArg*, std::set<size_t>> readers_left_;
  std::unordered_map<size_t, double> growth_;  // of those that are ready
  std::set<std::pair<double, size_t>> ready_;
};

}  // namespace

bool keeps_its_order(const Node& node) {
  const OpRecord* record = node.record();
  if (!record || record->has(kRandom) || record->has(kSideEffect) || record->has(kCollective)) return true;
  bool within = false;
  for_each_subgraph(node, [&](const std::string&, Graph& body) {
    body.for_each([&](Node& inner) { within = within || keeps_its_order(inner); });
  });
  return within;
}

ExecutionOrder parse_order(const std::string& name) {
  if (name == "default") return ExecutionOrder::kDefault;
  if (name == "priority_based") return ExecutionOrder::kPriority;
  ORTMODULE_CHECK_ARG(name == "memory_efficient",
                      "the order of execution should be 'default', 'priority_based' or 'memory_efficient', got '", name,
                      "'");
  return ExecutionOrder::kMemory;
}

double peak_of(const std::vector<const Node*>& nodes, const OrderFacts& facts) {
  std::unordered_map<const NodeArg*, size_t> last;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const NodeArg* in : nodes[i]->inputs())
      if (in) last[in] = i;
  double now = 0, peak = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const NodeArg* out : nodes[i]->outputs())
      if (out) now += bytes_of(facts, *out);
    peak = std::max(peak, now);
    for (const NodeArg* out : nodes[i]->outputs())
      if (out && !last.count(out) && !stays(facts, *out)) now -= bytes_of(facts, *out);
    const std::set<const NodeArg*> read(nodes[i]->inputs().begin(), nodes[i]->inputs().end());
    for (const NodeArg* in : read)
      if (in && last[in] == i && !stays(facts, *in)) now -= bytes_of(facts, *in);
  }
  return peak;
}

std::vector<const Node*> in_order(std::vector<const Node*> nodes, ExecutionOrder order, const OrderFacts& facts) {
  if (order == ExecutionOrder::kDefault) return nodes;
  if (order == ExecutionOrder::kPriority) return by_priority(nodes);
  std::vector<const Node*> greedy = Greedy(nodes, facts).run();
  return peak_of(greedy, facts) < peak_of(nodes, facts) ? greedy : nodes;
}

}  // namespace ortmodule

#include "placement/claims.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/status.h"
#include "graph/subgraph.h"
#include "graph/value_bytes.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {
namespace {

using Born = std::unordered_set<const NodeArg*>;

bool is_host_input(const Node& node, size_t i) {
  const FormalInput* formal = node.record()->formal_input(i);
  return formal && formal->host;
}

// Whether all that the node computes with is born on the host, constants aside.
bool computes_on_host(const Node& node, const Born& born, double least_bytes) {
  const OpRecord& record = *node.record();
  if (record.has(kHostOutput) && record.has(kShapeOnly)) return true;
  size_t operands = 0;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const NodeArg* value = node.input(i);
    if (!value || value->constant() || is_host_input(node, i)) continue;
    if (!born.count(value)) return false;
    ++operands;
  }
  if (record.has(kHostOutput) && operands == 0) return true;  // all that it reads is brought to the host
  if (operands == 0 || has_body(node)) return false;
  return std::all_of(node.outputs().begin(), node.outputs().end(),
                     [&](const NodeArg* out) { return !out || estimated_bytes(out->type(), {}, 1) <= least_bytes; });
}

// The members of a claim as places in the graph's order.
struct Members {
  std::unordered_set<const Node*> nodes;
  const Node* last = nullptr;
};

// The nodes between the members that depend on one, in order, which have to run behind them all; none where that is not
// possible, since a member reads one of them or their own order counts.
std::optional<std::vector<Node*>> nodes_behind(const std::vector<Node*>& order, const Members& members) {
  std::vector<Node*> behind;
  std::unordered_set<const Node*> outside;
  for (Node* node : order) {
    bool depends = false, on_outside = false;
    for (const NodeArg* in : node->inputs()) {
      const Node* producer = in ? in->producer() : nullptr;
      depends |= producer && (members.nodes.count(producer) || outside.count(producer));
      on_outside |= producer && outside.count(producer);
    }
    if (members.nodes.count(node)) {
      if (on_outside) return std::nullopt;
    } else if (depends) {
      if (node->record()->has(kRandom) || node->record()->has(kCollective) || node->record()->has(kSideEffect))
        return std::nullopt;
      outside.insert(node);
      behind.push_back(node);
    }
    if (node == members.last) break;
  }
  return behind;
}

bool is_one_phase(const Claim& claim) {
  return std::all_of(claim.nodes.begin(), claim.nodes.end(),
                     [&](const Node* node) { return node->phase() == claim.nodes[0]->phase(); });
}

// The members as a graph of their own, and which outer values go in and come out.
struct Body {
  std::shared_ptr<Graph> graph;
  std::vector<NodeArg*> inputs, results;
};

Body body_of(const Graph& graph, const Claim& claim, const std::vector<Node*>& order, const Members& members) {
  Body made{std::make_shared<Graph>(graph.name() + "_" + claim.fused), {}, {}};
  Graph& body = *made.graph;
  body.opsets() = graph.opsets();
  std::map<const NodeArg*, NodeArg*> inside;
  const auto enter = [&](NodeArg* in) {
    if (!in || inside.count(in)) return;
    NodeArg* formal =
        in->constant() ? body.add_initializer(in->name(), *in->constant()) : body.add_input(in->name(), in->type());
    formal->set_type(in->type());
    formal->set_known_dims(in->known_dims());
    if (!in->constant()) made.inputs.push_back(in);
    inside[in] = formal;
  };
  for (const Node* node : order) {
    if (!members.nodes.count(node)) continue;
    std::vector<NodeArg*> operands;
    for (NodeArg* in : node->inputs()) {
      enter(in);
      operands.push_back(in ? inside[in] : nullptr);
    }
    Node* copy = body.add_node(node->domain(), node->op(), operands, {}, node->attributes(), nullptr, node->name());
    copy->set_record(node->record());
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      NodeArg* out = node->output(i);
      if (!out) continue;
      inside[out] = body.materialize_output(copy, i, out->name());
      inside[out]->set_type(out->type());
      inside[out]->set_known_dims(out->known_dims());
      const bool read = std::any_of(out->uses().begin(), out->uses().end(),
                                    [&](const Use& use) { return !members.nodes.count(use.node); });
      if (read || out->is_graph_output()) made.results.push_back(out);
    }
  }
  for (const NodeArg* out : made.results) body.add_output(inside[out]);
  return made;
}

// Makes one node of the members, where the last of them stood; `behind` go behind it.
Node* join(Graph& graph, const Claim& claim, const std::vector<Node*>& order, const Members& members,
           const std::vector<Node*>& behind) {
  const Body body = body_of(graph, claim, order, members);
  const auto at = std::find(order.begin(), order.end(), members.last);
  Node* next = at + 1 == order.end() ? nullptr : *(at + 1);
  Attributes attributes{{"body", body.graph}, {"claim", claim.fused}};
  Node* joined = graph.add_node(kOwnDomain, "Claimed", body.inputs, std::vector<std::string>(body.results.size()),
                                attributes, next);
  for (Node* node : behind) graph.move_before(node, next);
  joined->set_phase(members.last->phase());
  joined->set_record(Registry::instance().find(kOwnDomain, "Claimed", 1));
  infer_node(*joined);  // the body's types in the body's symbols
  for (size_t i = 0; i < body.results.size(); ++i) {
    joined->output(i)->set_type(body.results[i]->type());
    joined->output(i)->set_known_dims(body.results[i]->known_dims());
    graph.replace_all_uses(body.results[i], joined->output(i));
  }
  for (auto node = order.rbegin(); node != order.rend(); ++node)
    if (members.nodes.count(*node)) graph.remove(*node);
  return joined;
}

// What a provider may still claim. Draws of torch's generators and collectives stay at home: elsewhere they would be
// other numbers, or another group's.
std::vector<const Node*> open_nodes(const Graph& graph, const Providers& providers, const ExecutionProvider& provider) {
  const bool home = provider.location() == providers.home ||
                    std::none_of(providers.order.begin(), providers.order.end(),
                                 [&](const auto& other) { return other->location() == providers.home; });
  std::vector<const Node*> nodes;
  graph.for_each([&](const Node& node) {
    const bool bound = node.record()->has(kRandom) || node.record()->has(kCollective);
    if (node.provider().empty() && (home || !bound)) nodes.push_back(&node);
  });
  return nodes;
}

}  // namespace

void assign_providers(Graph& graph, const Providers& providers, Born& born, PlacementResult& result) {
  double least_bytes = 0;
  for (const auto& provider : providers.order) least_bytes = std::max(least_bytes, provider->prices().host_bytes);
  graph.for_each([&](Node& node) {
    node.place("", "");
    const bool host = computes_on_host(node, born, least_bytes);
    if (host) node.place(kHost, kHost);
    if (!host && !node.record()->has(kHostOutput)) return;
    for (const NodeArg* out : node.outputs())
      if (out) born.insert(out);
  });
  for (const auto& provider : providers.order) {
    for (const Claim& claim : provider->capability(open_nodes(graph, providers, *provider))) {
      if (claim.fused.empty()) {
        for (const Node* node : claim.nodes) const_cast<Node*>(node)->place(provider->name(), provider->location());
        continue;
      }
      const std::vector<Node*> order = graph.nodes();
      Members members{{claim.nodes.begin(), claim.nodes.end()}};
      for (const Node* node : order)
        if (members.nodes.count(node)) members.last = node;
      if (!is_one_phase(claim)) continue;
      const auto behind = nodes_behind(order, members);
      if (!behind) continue;
      join(graph, claim, order, members, *behind)->place(provider->name(), provider->location());
      ++result.fused;
    }
  }
  graph.for_each([&](const Node& node) {
    ORTMODULE_CHECK(!node.provider().empty(), kUnsupported, "no execution provider runs ", node.describe());
    ++result.nodes[node.provider()];
  });
}

}  // namespace ortmodule

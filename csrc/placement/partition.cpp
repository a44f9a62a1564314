#include "placement/partition.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/status.h"
#include "graph/subgraph.h"
#include "placement/claims.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

using Born = std::unordered_set<const NodeArg*>;

// One graph on its way to places; a body's inputs have theirs already.
class Partition {
 public:
  Partition(Graph& graph, const Providers& providers, size_t forward_outputs, bool is_body, PlacementResult& result)
      : graph_(graph), providers_(providers), forward_outputs_(forward_outputs), is_body_(is_body), result_(result) {}

  // `host_formals`: how many of the first inputs and outputs are numbers of the host.
  void run(std::pair<size_t, size_t> host_formals) {
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      NodeArg* in = graph_.inputs()[i];
      if (in->location().empty()) in->set_location(i < host_formals.first ? kHost : providers_.home);
      if (in->location() == kHost && providers_.home != kHost) born_.insert(in);
    }
    assign_providers(graph_, providers_, born_, result_);
    graph_.for_each([&](Node& node) { place_results(node); });
    place_constants();
    graph_.for_each([&](Node& node) {
      for (size_t i = 0; i < node.inputs().size(); ++i) bring(node, i);
    });
    bring_home(host_formals.second);
  }

 private:
  enum class Need { kHost, kDevice, kAnywhere };

  Need need(const Node& node, size_t i) const {
    const FormalInput* formal = node.record()->formal_input(i);
    if (formal && formal->host) return Need::kHost;
    if (node.record()->has(kHostOutput) || i >= explicit_input_count(node)) return Need::kAnywhere;
    return Need::kDevice;
  }

  // Where the node reads its input; empty: wherever it lies.
  std::string where(const Node& node, size_t i) const {
    const Need needed = need(node, i);
    if (needed == Need::kAnywhere) return "";
    return needed == Need::kHost ? kHost : node.device();
  }

  // Whether ATen takes the value from the host: a number beside a tensor.
  static bool is_number_beside_tensor(const Node& node, const NodeArg& value) {
    const auto& shape = value.type().shape;
    const bool number = value.constant() ? value.constant()->dims.empty() : shape && shape->empty();
    return number && node.record()->has(kElementwise) &&
           std::any_of(node.inputs().begin(), node.inputs().end(), [&](const NodeArg* other) {
             return other && !other->constant() && other->location() == node.device();
           });
  }

  void place_results(Node& node) {
    for (NodeArg* out : node.outputs())
      if (out) out->set_location(node.record()->has(kHostOutput) ? kHost : node.device());
    const std::vector<std::string> names = node.get_strings(kCapturedAttribute);
    const size_t first = explicit_input_count(node);
    if (node.record()->has(kProvidersBody)) return;
    for (const auto& [name, attribute] : node.attributes()) {
      const auto* body = std::get_if<std::shared_ptr<Graph>>(&attribute);
      if (!body) continue;
      for (NodeArg* in : (*body)->inputs()) {
        const auto at = std::find(names.begin(), names.end(), in->name());
        const NodeArg* outer =
            at == names.end() ? nullptr : node.input(first + static_cast<size_t>(at - names.begin()));
        // A constant has no place yet; the body's home is as good as any.
        in->set_location(outer && !outer->constant() ? outer->location() : "");
      }
      Providers inner = providers_;
      inner.home = node.device();
      Partition(**body, inner, (*body)->outputs().size(), true, result_).run(node.record()->host_formals());
    }
  }

  // A captured constant is an input of a body, which was placed at the node's device.
  std::string where_constant(const Node& node, size_t i) const {
    return i >= explicit_input_count(node) ? node.device() : where(node, i);
  }

  void place_constants() {
    for (NodeArg* value : graph_.initializers()) {
      std::map<std::string, std::vector<Use>> readers;
      for (const Use& use : value->uses()) {
        std::string place = where_constant(*use.node, use.index);
        if (is_number_beside_tensor(*use.node, *value)) place = kHost;
        if (!place.empty()) readers[place].push_back(use);
      }
      if (value->is_graph_output()) readers[providers_.home];
      const bool at_home = value->is_graph_output() || readers.empty();
      value->set_location(at_home ? providers_.home : readers.rbegin()->first);
      for (const auto& [place, uses] : readers) {
        if (place == value->location()) continue;
        NodeArg* copy = graph_.add_initializer(graph_.fresh_name(value->name() + "_on_" + place), *value->constant());
        copy->set_type(value->type());
        copy->set_known_dims(value->known_dims());
        copy->set_location(place);
        for (const Use& use : uses) use.node->set_input(use.index, copy);
      }
    }
  }

  void bring(Node& node, size_t i) {
    NodeArg* value = node.input(i);
    if (!value || value->constant()) return;
    const std::string place = where(node, i);
    if (place.empty() || value->location() == place) return;
    if (value->location() == kHost && is_number_beside_tensor(node, *value)) return;
    node.set_input(i, at(value, place, node.phase(), &node));
  }

  // The value at another place, for readers of one half of the step.
  NodeArg* at(NodeArg* value, const std::string& place, Phase phase, Node* before) {
    NodeArg*& copy = copies_[{value, place, phase}];
    if (copy) return copy;
    const bool to_host = place == kHost;
    Node* node = graph_.add_node(kOwnDomain, to_host ? "MemcpyToHost" : "MemcpyToDevice", {value},
                                 {graph_.fresh_name(value->name() + "_on_" + place)}, {}, before);
    node->set_phase(phase);
    node->set_record(Registry::instance().find(kOwnDomain, node->op(), 1));
    const std::string& device = to_host ? value->location() : place;
    node->place(provider_at(device), device);
    copy = node->output(0);
    copy->set_type(value->type());
    copy->set_known_dims(value->known_dims());
    copy->set_location(place);
    ++(to_host ? result_.to_host : result_.to_device);
    return copy;
  }

  std::string provider_at(const std::string& device) const {
    for (const auto& provider : providers_.order)
      if (provider->location() == device) return provider->name();
    return device;
  }

  void bring_home(size_t host_outputs) {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      NodeArg* out = graph_.outputs()[i];
      if (!out || out->constant()) continue;
      const std::string place = i < host_outputs ? kHost : providers_.home;
      const bool born = out->location() == kHost && born_.count(out);
      if (out->location() == place || (born && !is_body_)) continue;
      graph_.set_output(i, at(out, place, i < forward_outputs_ ? Phase::kForward : Phase::kBackward, nullptr));
    }
  }

  Graph& graph_;
  const Providers& providers_;
  const size_t forward_outputs_;
  const bool is_body_;  // whose results lie in one place, whichever branch made them
  PlacementResult& result_;
  Born born_;
  std::map<std::tuple<NodeArg*, std::string, Phase>, NodeArg*> copies_;
};

}  // namespace

bool Providers::only_host() const {
  return home == kHost && std::all_of(order.begin(), order.end(), [](const auto& p) { return p->name() == kHost; });
}

Providers make_providers(const std::vector<ProviderSpec>& specs, const std::string& home) {
  Providers made{home, {}};
  const auto has = [&](const std::string& name) {
    return std::any_of(made.order.begin(), made.order.end(), [&](const auto& p) { return p->name() == name; });
  };
  for (const ProviderSpec& spec : specs) {
    ORTMODULE_CHECK(!has(spec.name), kInvalidArgument, "the provider '", spec.name, "' is named twice");
    made.order.push_back(ProviderRegistry::instance().make(spec));
  }
  if (specs.empty() && home != kHost) made.order.push_back(ProviderRegistry::instance().make({home}));
  if (!has(kHost)) made.order.push_back(ProviderRegistry::instance().make({kHost}));
  return made;
}

PlacementResult place(Graph& graph, const Providers& providers, size_t forward_outputs) {
  PlacementResult result;
  Partition(graph, providers, forward_outputs, false, result).run({0, 0});
  return result;
}

}  // namespace ortmodule

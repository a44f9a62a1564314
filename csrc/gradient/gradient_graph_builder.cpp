#include "gradient/gradient_graph_builder.h"

#include <algorithm>

#include "base/container_type.h"
#include "base/status.h"
#include "records/grad_context.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "records/subgraphs/subgraph_gradient.h"
#include "records/user_gradient.h"

namespace ortmodule {
namespace {

bool carries_gradient(const NodeArg* value) {
  return value && (is_floating(value->type().dtype) || value->type().dtype == DType::kUndefined);
}

// A formula that the user gave covers every floating input.
bool differentiable_node(const Node& node) { return node.record()->differentiable() || user_gradient(*node.record()); }

// A node may itself name inputs that its derivative does not reach.
bool cut_off(const Node& node, size_t i) {
  if (!node.find_attribute("no_grad_inputs")) return false;
  const std::vector<int64_t> cut = node.get_ints("no_grad_inputs");
  return std::find(cut.begin(), cut.end(), static_cast<int64_t>(i)) != cut.end();
}

bool differentiable_input(const Node& node, size_t i) {
  if (cut_off(node, i)) return false;
  if (user_gradient(*node.record())) return carries_gradient(node.input(i));
  const FormalInput* formal = node.record()->formal_input(i);
  return formal && formal->gradient == FormalInput::Gradient::kDifferentiable && carries_gradient(node.input(i));
}

class Builder {
 public:
  Builder(Graph& graph, const GradientRequest& request) : graph_(graph), request_(request) {}

  GradientResult run() {
    const std::vector<Node*> forward = graph_.nodes();
    depends_ = differentiable_values(graph_, request_.xs);
    GradientResult result;
    for (NodeArg* y : request_.ys) {
      NodeArg* dy = nullptr;
      if (depends(y) && carries_gradient(y)) {
        dy = graph_.add_input(graph_.fresh_name("grad_" + y->name()), y->type());
        accumulate(y, dy, *y);
      }
      result.dys.push_back(dy);
    }
    for (auto it = forward.rbegin(); it != forward.rend(); ++it) differentiate(**it);
    for (NodeArg* x : request_.xs) result.dxs.push_back(gradient_of(x));
    result.unheard = std::move(unheard_);
    return result;
  }

 private:
  bool depends(const NodeArg* v) const { return v->id() < depends_.size() && depends_[v->id()]; }

  NodeArg* gradient_of(const NodeArg* v) const { return v->id() < gradients_.size() ? gradients_[v->id()] : nullptr; }

  // Contributions are added as they arrive, so that at most two buffers of one gradient are alive.
  void accumulate(const NodeArg* value, NodeArg* contribution, const NodeArg& origin) {
    if (gradients_.size() <= value->id())
      gradients_.resize(std::max(value->id() + 1, graph_.value_id_bound()), nullptr);
    NodeArg*& slot = gradients_[value->id()];
    if (!slot) {
      slot = contribution;
      return;
    }
    Node* sum = graph_.add_node("", "Sum", {slot, contribution}, {graph_.fresh_name("grad_sum_" + origin.name())});
    sum->set_phase(Phase::kBackward);
    infer_node(*sum);
    slot = sum->output(0);
  }

  void differentiate(Node& node) {
    if (node.phase() != Phase::kForward || !differentiable_node(node)) return;
    std::vector<NodeArg*> grad_outputs;
    bool any_output = false;
    for (const NodeArg* out : node.outputs()) {
      NodeArg* g = out ? gradient_of(out) : nullptr;
      grad_outputs.push_back(g);
      any_output = any_output || g;
    }
    if (!any_output) return;
    std::vector<bool> needed(node.inputs().size(), false);
    bool any_input = false;
    for (size_t i = 0; i < needed.size(); ++i) {
      needed[i] = node.input(i) && depends(node.input(i)) && differentiable_input(node, i);
      any_input = any_input || needed[i];
    }
    if (!any_input) return;
    GradContext context(graph_, node, std::move(grad_outputs), std::move(needed));
    const GradFn* given = user_gradient(*node.record());
    (given ? *given : node.record()->grad_fn())(context);
    if (!context.heard_all()) unheard_.push_back(&node);
    for (size_t i = 0; i < node.inputs().size(); ++i)
      if (NodeArg* g = context.results()[i]) accumulate(node.input(i), g, *node.input(i));
  }

  Graph& graph_;
  const GradientRequest& request_;
  std::vector<char> depends_;
  std::vector<NodeArg*> gradients_;  // by value id
  std::vector<Node*> unheard_;
};

}  // namespace

std::vector<char> differentiable_values(const Graph& graph, const std::vector<NodeArg*>& xs) {
  std::vector<char> depends(graph.value_id_bound(), 0);
  for (const NodeArg* x : xs) depends[x->id()] = 1;
  graph.for_each([&](Node& node) {
    if (!differentiable_node(node)) return;
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      if (!node.input(i) || !depends[node.input(i)->id()] || !differentiable_input(node, i)) continue;
      for (const NodeArg* out : node.outputs())
        if (carries_gradient(out)) depends[out->id()] = 1;
      break;
    }
  });
  return depends;
}

void refuse_gradients_through_containers(const Graph& graph, const std::vector<NodeArg*>& xs) {
  const std::vector<char> depends = differentiable_values(graph, xs);
  std::vector<const Node*> origin(graph.value_id_bound(), nullptr);  // the node where the gradient is lost
  graph.for_each([&](Node& node) {
    const bool takes_containers = node.record()->has(kTakesContainers);
    if (!takes_containers && !differentiable_node(node)) return;
    const Node* lost = nullptr;
    bool wanted = false;
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const NodeArg* in = node.inputs()[i];
      if (!in) continue;
      if (origin[in->id()] && (takes_containers || differentiable_input(node, i))) lost = origin[in->id()];
      wanted = wanted || depends[in->id()];
    }
    for (const NodeArg* out : node.outputs()) {
      if (!out) continue;
      const bool container = is_container(out->type().dtype) && is_floating(element_of(out->type().dtype));
      if (container && wanted) lost = lost ? lost : &node;
      if (container || carries_gradient(out)) origin[out->id()] = lost;
    }
  });
  for (const NodeArg* out : graph.outputs())
    ORTMODULE_CHECK(!origin[out->id()] || is_container(out->type().dtype), kUnsupported, "the gradient of '",
                    out->name(), "' goes through a sequence or an optional, which is not supported (",
                    origin[out->id()]->describe(), ")");
}

GradientResult build_gradient(Graph& graph, const GradientRequest& request) { return Builder(graph, request).run(); }

namespace {

[[maybe_unused]] const bool registered = [] {
  set_body_gradient_builder([](Graph& graph, const std::vector<NodeArg*>& ys, const std::vector<NodeArg*>& xs) {
    GradientResult result = build_gradient(graph, {ys, xs});
    return BodyGradientValues{std::move(result.dys), std::move(result.dxs)};
  });
  return true;
}();

}  // namespace

}  // namespace ortmodule

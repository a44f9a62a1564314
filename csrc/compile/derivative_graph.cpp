#include "compile/derivative_graph.h"

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "base/status.h"
#include "compile/stages.h"
#include "graph/subgraph.h"
#include "onnx/export.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/expand_body.h"

namespace ortmodule {
namespace {

// Bodies may use operators with bodies, to this depth.
constexpr int kMaxDepth = 8;

NodeArg* named(const std::vector<NodeArg*>& values, const std::string& name, const char* what) {
  for (NodeArg* value : values)
    if (value->name() == name) return value;
  fail(ErrorCode::kInvalidArgument, "the model has no ", what, " '", name, "'");
}

std::vector<NodeArg*> floating(const std::vector<NodeArg*>& values) {
  std::vector<NodeArg*> out;
  for (NodeArg* value : values)
    if (is_floating(value->type().dtype)) out.push_back(value);
  return out;
}

// What is of no standard may be a kernel of a gradient, whose record has no gradient because there was no need for one.
// What the standard has is not differentiable because its derivative is zero.
bool is_own(const Node& node) { return !node.domain().empty() && node.domain() != "ai.onnx.ml"; }

// A `detach`, or a write that autograd does not see: the second derivative ends there as the first does. What is an end
// for the first derivative alone is none any more where that matters (see_through).
bool is_meant(const Node& node) { return node.record()->has(kMeantEnd); }

// Ends that a formula has for the sake of its first derivative: see StopGradient (ops/elementwise/select.cpp). In
// `half` of the graph, what reads one reads its source.
void see_through(Graph& graph, int64_t first_order, Phase half) {
  graph.for_each([&](Node& node) {
    if (node.op() != "StopGradient" || node.get_int("first_order", 0) != first_order) return;
    const std::vector<Use> uses = node.output(0)->uses();
    for (const Use& use : uses)
      if (use.node && use.node->phase() == half) use.node->set_input(use.index, node.input(0));
  });
}

// Whether a gradient of one of its outputs would not come to an input that depends on an x.
bool cuts_off(const Node& node, const std::vector<char>& depends) {
  const bool results = std::any_of(node.outputs().begin(), node.outputs().end(), [](const NodeArg* out) {
    return out && is_floating(out->type().dtype) && (!out->uses().empty() || out->is_graph_output());
  });
  if (!results || !is_own(node) || is_meant(node)) return false;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    const NodeArg* in = node.inputs()[i];
    if (!in || !is_floating(in->type().dtype) || !depends[in->id()]) continue;
    const FormalInput* formal = node.record()->formal_input(i);
    if (!formal || formal->gradient != FormalInput::Gradient::kDifferentiable) return true;
  }
  return false;
}

void expand(Graph& graph, Node& node) {
  const std::string described = node.describe();
  const bool has_values_alone = node.record()->has(kBodyOfValues);
  ORTMODULE_CHECK(!has_values_alone && expand_body(graph, node), kUnsupported, described, " has no second derivative");
}

// Values that depend on an x in any way, also through what has no gradient but is not meant to end there.
std::vector<char> reached_values(const Graph& graph, const std::vector<NodeArg*>& xs) {
  std::vector<char> reached(graph.value_id_bound(), 0);
  for (const NodeArg* x : floating(xs)) reached[x->id()] = 1;
  graph.for_each([&](Node& node) {
    if (node.op() == "StopGradient" && is_meant(node)) return;
    const auto is_reached = [&](const NodeArg* in) { return in && reached[in->id()]; };
    if (!std::any_of(node.inputs().begin(), node.inputs().end(), is_reached)) return;
    for (const NodeArg* out : node.outputs())
      if (out && is_floating(out->type().dtype)) reached[out->id()] = 1;
  });
  return reached;
}

// From the back: the body of a gradient's kernel may leave a saved output of the forward operator unread.
bool expand_what_cuts_off(Graph& graph) {
  const std::vector<char> reached = reached_values(graph, graph.inputs());
  const std::vector<Node*> nodes = graph.nodes();
  bool changed = false;
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    if (!cuts_off(**it, reached) && !shows_saved_output(**it)) continue;
    expand(graph, **it);
    changed = true;
  }
  return changed;
}

// Formulas that leave the gradient of an output aside are found by differentiating a copy.
bool expand_what_is_unheard(Graph& graph) {
  const std::unique_ptr<Graph> copy = graph.clone();
  const GradientResult again = build_gradient(*copy, {copy->outputs(), floating(copy->inputs())});
  std::unordered_set<std::string> unheard;
  for (const Node* node : again.unheard)
    for (const NodeArg* out : node->outputs())
      if (out) unheard.insert(out->name());
  const std::vector<Node*> nodes = graph.nodes();
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it)
    for (const NodeArg* out : (*it)->outputs())
      if (out && unheard.count(out->name())) {
        expand(graph, **it);
        break;
      }
  return !unheard.empty();
}

void clean_up(Graph& graph) {
  make_pass("common_subexpression_elimination")->apply(graph, TransformContext());
  make_pass("dead_node_elimination")->apply(graph, TransformContext());
  resolve(graph);
}

void make_differentiable(Graph& graph) {
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const bool changed = expand_what_cuts_off(graph) || expand_what_is_unheard(graph);
    clean_up(graph);
    if (!changed) return;
  }
  fail(ErrorCode::kUnsupported, "bodies within bodies leave an operator that has no second derivative");
}

// Sizes within a body that another has made are not always known by then.
void refuse_control_flow(const Graph& graph) {
  graph.for_each([](Node& node) {
    ORTMODULE_CHECK(!has_body(node), kUnsupported, node.describe(), " has a body, and no second derivative");
  });
}

// Where gradients end (a `detach`), or go another way than the values, a captured forward may be written so that its
// first derivative is right, and say nothing of the second.
void refuse_other_ways(const Graph& graph, const std::vector<NodeArg*>& xs) {
  const std::vector<char> reached = reached_values(graph, xs);
  graph.for_each([&](Node& node) {
    const bool of_values = node.record()->has(kBodyOfValues) && !is_meant(node);
    const bool other = cuts_off(node, reached) || of_values || node.find_attribute("no_grad_inputs");
    ORTMODULE_CHECK(!other, kUnsupported, node.describe(), " has a first derivative alone");
  });
}

void refuse_random(const Graph& graph) {
  graph.for_each([](Node& node) {
    ORTMODULE_CHECK(!node.record()->has(kRandom), kUnsupported, node.describe(),
                    " draws random numbers, other ones in a second run");
  });
}

// Symbols of sizes that no rule knows are named after nodes of this graph; another one's would be taken for the same.
void forget_unknown_sizes(Graph& graph) {
  const auto is_unknown = [](const Dim& dim) {
    std::vector<std::string> symbols;
    dim.collect_symbols(symbols);
    return std::any_of(symbols.begin(), symbols.end(), [](const std::string& name) { return name.starts_with("u_"); });
  };
  const auto has_unknown = [&](const NodeArg* value) {
    return value && value->type().shape &&
           std::any_of(value->type().shape->begin(), value->type().shape->end(), is_unknown);
  };
  graph.for_each([&](Node& node) {
    for (NodeArg* out : node.outputs())
      if (has_unknown(out)) out->set_type({out->type().dtype, std::nullopt});
  });
  for (NodeArg* in : graph.inputs()) {
    if (!has_unknown(in)) continue;
    TypeInfo type = in->type();
    for (size_t axis = 0; axis < type.shape->size(); ++axis)
      if (is_unknown((*type.shape)[axis])) (*type.shape)[axis] = Dim::symbol(str("size_", in->id(), "_", axis));
    in->set_type(std::move(type));
  }
}

}  // namespace

DerivativeGraph derivative_graph(std::string_view model, const DerivativeRequest& request) {
  StageLog log(false);
  std::unique_ptr<Graph> graph = imported(model, {}, log);
  PassSettings settings;
  settings.manager.level = PassLevel::kBasic;
  settings.trainable = request.xs;
  transform(*graph, PassStage::kForward, settings);
  resolve(*graph);
  refuse_random(*graph);
  std::vector<NodeArg*> trainable;
  for (const std::string& name : request.trainable) trainable.push_back(named(graph->inputs(), name, "input"));
  see_through(*graph, 2, Phase::kForward);
  refuse_other_ways(*graph, trainable);
  GradientRequest gradient;
  for (const std::string& name : request.xs) gradient.xs.push_back(named(graph->inputs(), name, "input"));
  for (const std::string& name : request.ys) gradient.ys.push_back(named(graph->outputs(), name, "output"));
  refuse_gradients_through_containers(*graph, gradient.xs);
  const GradientResult result = build_gradient(*graph, gradient);
  see_through(*graph, 1, Phase::kBackward);
  DerivativeGraph out;
  graph->clear_outputs();
  for (size_t i = 0; i < result.dxs.size(); ++i) {
    if (!result.dxs[i]) continue;
    out.dxs.push_back(i);
    // A gradient may be another's, or an input.
    Node* node = graph->add_node("", "Identity", {result.dxs[i]}, {graph->fresh_name(request.xs[i] + "_grad")});
    infer_node(*node);
    graph->add_output(node->output(0));
  }
  for (size_t i = 0; i < result.dys.size(); ++i) {
    if (!result.dys[i]) continue;
    out.dys.push_back(i);
    graph->replace_all_uses(result.dys[i], graph->add_input(request.ys[i] + "_grad", gradient.ys[i]->type()));
    graph->remove_input(result.dys[i]);
  }
  clean_up(*graph);
  graph->for_each([](Node& node) { node.set_phase(Phase::kForward); });
  make_differentiable(*graph);
  refuse_control_flow(*graph);
  for (size_t i = 0; i + out.dys.size() < graph->inputs().size(); ++i)
    if (!graph->inputs()[i]->uses().empty()) out.reads.push_back(i);
  forget_unknown_sizes(*graph);
  out.model = export_model(*graph);
  return out;
}

}  // namespace ortmodule

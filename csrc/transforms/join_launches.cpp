#include "transforms/join_launches.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/earlier_values.h"
#include "transforms/parts.h"

namespace ortmodule {
namespace {

constexpr size_t kMostParts = 4;  // that a kernel of ConcatSum takes
// Gradients that wait for one another. More would be fewer launches, and later for who sums them over processes.
constexpr size_t kMostGradients = 16;

bool is_narrow(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
bool is_float(DType dtype) { return dtype == DType::kFloat || is_narrow(dtype); }

// -- casts ------------------------------------------------------------------------------------------------------------

bool is_copy_of_input(const Node& node) {
  if (!is(&node, "", "Cast") || node.phase() != Phase::kForward || !node.input(0)->is_graph_input()) return false;
  const NodeArg* copy = node.output(0);
  const DType from = node.input(0)->type().dtype, to = copy->type().dtype;
  if (from == to || !is_float(from) || !is_float(to)) return false;
  const auto& uses = copy->uses();
  const auto in_backward = [](const Use& use) { return use.node->phase() == Phase::kBackward; };
  const bool vector = copy->type().shape && copy->type().shape->size() < 2;
  if (!vector && std::none_of(uses.begin(), uses.end(), in_backward)) return false;
  return std::none_of(uses.begin(), uses.end(), [](const Use& use) { return fuses(use.node); });
}

// One node of that operator where `place` stands, one of `nodes`, which computes what they do of inputs[i] each.
// Returns how many nodes are fewer.
size_t join(Graph& graph, const std::vector<Node*>& nodes, const std::vector<NodeArg*>& inputs, const char* op,
            Attributes attributes, Node* place) {
  if (nodes.size() < 2) return 0;
  Node* all = graph.add_node("ai.ortmodule", op, inputs, std::vector<std::string>(nodes.size()), std::move(attributes),
                             place, graph.fresh_name(place->name() + "_all"));
  all->metadata() = place->metadata();
  all->set_phase(place->phase());
  for (size_t i = nodes.size(); i-- > 0;) graph.drop_output(all, i);
  for (size_t i = 0; i < nodes.size(); ++i) {
    graph.move_output(nodes[i]->output(0), all, i);
    graph.remove(nodes[i]);
  }
  infer_node(*all);
  return nodes.size() - 1;
}

std::vector<NodeArg*> first_inputs(const std::vector<Node*>& nodes) {
  std::vector<NodeArg*> inputs;
  for (const Node* node : nodes) inputs.push_back(node->input(0));
  return inputs;
}

Attributes to_type(const Node& cast) { return {{"to", static_cast<int64_t>(cast.output(0)->type().dtype)}}; }

size_t join_casts(Graph& graph) {
  std::map<std::pair<DType, DType>, std::vector<Node*>> alike;
  graph.for_each([&](Node& node) {
    const bool earlier = is_earlier_input(node) && is_float(node.output(0)->type().dtype);
    if (earlier || is_copy_of_input(node))
      alike[{node.input(0)->type().dtype, node.output(0)->type().dtype}].push_back(&node);
  });
  size_t joined = 0;
  for (const auto& [types, casts] : alike)
    joined += join(graph, casts, first_inputs(casts), "CastAll", to_type(*casts[0]), casts[0]);
  return joined;
}

// -- counters ---------------------------------------------------------------------------------------------------------

// The input that the node counts up by a constant, and that; none for other nodes.
std::optional<std::pair<NodeArg*, int64_t>> counted(const Node& node) {
  if (!is(&node, "", "Add") || node.phase() != Phase::kForward || !node.output(0)->is_graph_output()) return {};
  for (const size_t i : {0, 1}) {
    NodeArg* counter = node.input(i);
    const TensorData* by = node.input(1 - i)->constant();
    if (by && by->dims.empty() && counter->is_graph_input() && counter->type().dtype == DType::kInt64)
      return std::pair(counter, by->to_ints()[0]);
  }
  return {};
}

size_t join_counters(Graph& graph) {
  std::map<int64_t, std::pair<std::vector<Node*>, std::vector<NodeArg*>>> alike;
  graph.for_each([&](Node& node) {
    const auto found = counted(node);
    if (!found) return;
    alike[found->second].first.push_back(&node);
    alike[found->second].second.push_back(found->first);
  });
  size_t joined = 0;
  for (const auto& [value, nodes] : alike)
    joined += join(graph, nodes.first, nodes.second, "AddAll", {{"value", value}}, nodes.first[0]);
  return joined;
}

// -- gradients of weights and biases ----------------------------------------------------------------------------------

// The Cast to float that is all that reads the value; null where there is something else.
Node* widened(const NodeArg* value) {
  if (!value || value->is_graph_output() || value->uses().size() != 1 || !is_narrow(value->type().dtype))
    return nullptr;
  Node* reader = value->uses()[0].node;
  return is(reader, "", "Cast") && reader->output(0)->type().dtype == DType::kFloat ? reader : nullptr;
}

bool makes_nothing(const Node& node) {
  return std::all_of(node.outputs().begin(), node.outputs().end(), [](const NodeArg* out) { return !out; });
}

// How a value is made of parts side by side along its last axis, but for views: Concat, GatherRows (a view where all
// rows are listed), Reshape.
struct Joint {
  Node *concat = nullptr, *gather = nullptr, *reshape = nullptr;  // null: not there
  size_t axis = 0;                                                // of the parts, once they are gathered
};

bool read_once(const NodeArg* value) { return value->uses().size() == 1 && !value->is_graph_output(); }

std::optional<int64_t> elements_from(const Shape& shape, size_t axis) {
  int64_t count = 1;
  for (size_t i = axis; i < shape.size(); ++i) {
    if (!shape[i].is_known()) return std::nullopt;
    count *= shape[i].value();
  }
  return count;
}

// None where the value is made in another way.
std::optional<Joint> joint_of(const NodeArg& value) {
  Joint found;
  Node* node = value.producer();
  if (is(node, "", "Reshape") && read_once(node->input(0))) node = (found.reshape = node)->input(0)->producer();
  if (is(node, "ai.ortmodule", "GatherRows") && read_once(node->input(0)))
    node = (found.gather = node)->input(0)->producer();
  if (!is(node, "", "Concat") || node->inputs().size() > kMostParts || !is_float(value.type().dtype)) return {};
  found.concat = node;
  const auto& whole = node->output(0)->type().shape;
  const NodeArg* gathered = found.gather ? found.gather->output(0) : node->output(0);
  if (!whole || !gathered->type().shape) return {};
  const int64_t axis = node->get_int("axis", 0), lead = found.gather ? found.gather->get_int("lead", 1) : 1;
  const int64_t along = (axis < 0 ? axis + static_cast<int64_t>(whole->size()) : axis) - lead + 1;
  const Shape &from = *gathered->type().shape, &to = *value.type().shape;
  if (along < 1 || static_cast<size_t>(along) + 1 != to.size()) return {};
  found.axis = static_cast<size_t>(along);
  if (!std::equal(from.begin(), from.begin() + along, to.begin()) || !elements_from(from, found.axis)) return {};
  for (const NodeArg* part : node->inputs()) {
    const size_t own = static_cast<size_t>(along + lead - 1);
    if (!part->type().shape || !elements_from(*part->type().shape, own)) return {};
  }
  return found;
}

// ConcatSum in place of what makes `value`, whose sums are `sums`.
void join_with_sums(Graph& graph, NodeArg* value, NodeArg* sums, const Joint& joint, bool wide) {
  Node& last = *value->producer();
  std::vector<NodeArg*> parts;
  for (NodeArg* part : joint.concat->inputs()) {
    if (joint.gather)
      part = added_before(graph, "ai.ortmodule", "GatherRows", {part, joint.gather->input(1)}, 1,
                          joint.gather->attributes(), last)
                 ->output(0);
    if (joint.reshape) {
      std::vector<int64_t> sizes(joint.axis, 0);  // as they are
      sizes.push_back(*elements_from(*part->type().shape, joint.axis));
      part = added_before(graph, "", "Reshape", {part, graph.constant(TensorData::of_ints(sizes))}, 1, {}, last)
                 ->output(0);
    }
    parts.push_back(part);
  }
  Node* both = added_before(graph, "ai.ortmodule", "ConcatSum", parts, 2, {{"wide", int64_t{wide ? 1 : 0}}}, last);
  hand_over(graph, value, both, 0);
  hand_over(graph, sums, both, 1);
  for (Node* node : {joint.reshape, joint.gather, joint.concat})
    if (node) graph.remove(node);
}

bool sum_bias(Graph& graph, Node& node) {
  NodeArg *dy = node.input(0), *db = node.output(2);
  if (!db || !dy->type().shape || dy->type().shape->size() < 2) return false;
  Node* cast = widened(db);
  const std::optional<Joint> joint = joint_of(*dy);
  if (!cast && !joint && !fuses(dy->producer())) return false;
  NodeArg* wanted = cast ? cast->output(0) : db;
  if (joint) {
    join_with_sums(graph, dy, wanted, *joint, cast != nullptr);
  } else {
    if (cast)
      dy = added_before(graph, "", "Cast", {dy}, 1, {{"to", static_cast<int64_t>(DType::kFloat)}}, node)->output(0);
    std::vector<int64_t> axes(dy->type().shape->size() - 1);
    std::iota(axes.begin(), axes.end(), 0);
    NodeArg* over = graph.constant(TensorData::of_ints(axes));
    hand_over(graph, wanted, added_before(graph, "", "ReduceSum", {dy, over}, 1, {{"keepdims", int64_t{0}}}, node), 0);
  }
  if (cast) {
    graph.remove(cast);
    graph.drop_output(&node, 2);
  }
  if (makes_nothing(node)) graph.remove(&node);
  return true;
}

bool widen_weight(Graph& graph, Node& node) {
  Node* cast = widened(node.output(1));
  if (!cast) return false;
  Attributes attributes = node.attributes();
  attributes["wide"] = int64_t{1};
  Node* wide =
      added_before(graph, "ai.ortmodule", "LinearGrad", node.inputs(), node.outputs().size(), attributes, node);
  for (size_t i = node.outputs().size(); i-- > 0;) {
    if (i == 1)
      hand_over(graph, cast->output(0), wide, i);
    else if (NodeArg* value = node.output(i))
      hand_over(graph, value, wide, i);
    else
      graph.drop_output(wide, i);
  }
  graph.remove(cast);
  graph.remove(&node);
  return true;
}

std::vector<Node*> linear_gradients(Graph& graph) {
  std::vector<Node*> found;
  for (Node* node : graph.nodes())
    if (is(node, "ai.ortmodule", "LinearGrad")) found.push_back(node);
  return found;
}

// A gradient that is made narrow, by something that no program expresses, and handed out as a float.
bool is_widened_gradient(const Node& node) {
  if (!is(&node, "", "Cast") || node.phase() != Phase::kBackward) return false;
  const NodeArg *narrow = node.input(0), *wide = node.output(0);
  return is_narrow(narrow->type().dtype) && wide->type().dtype == DType::kFloat && wide->is_graph_output() &&
         wide->uses().empty() && narrow->producer() && read_once(narrow) && !fuses(narrow->producer());
}

size_t join_gradients(Graph& graph) {
  size_t joined = 0;
  std::vector<Node*> casts;
  const auto flush = [&] {
    if (!casts.empty()) joined += join(graph, casts, first_inputs(casts), "CastAll", to_type(*casts[0]), casts.back());
    casts.clear();
  };
  for (Node* node : graph.nodes()) {
    if (!is_widened_gradient(*node)) continue;
    if (!casts.empty() && casts[0]->input(0)->type().dtype != node->input(0)->type().dtype) flush();
    casts.push_back(node);
    if (casts.size() == kMostGradients) flush();
  }
  flush();
  return joined;
}

}  // namespace

size_t join_launches(Graph& graph) {
  size_t changed = join_casts(graph) + join_counters(graph);
  // Each removes itself at most, and nodes of other kinds.
  for (Node* node : linear_gradients(graph)) changed += sum_bias(graph, *node);
  for (Node* node : linear_gradients(graph)) changed += widen_weight(graph, *node);
  return changed + join_gradients(graph);
}

}  // namespace ortmodule

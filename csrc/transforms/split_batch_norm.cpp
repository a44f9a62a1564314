#include "transforms/split_batch_norm.h"

#include "transforms/parts.h"

namespace ortmodule {
namespace {

constexpr const char* kDomain = "ai.ortmodule";

bool splits(const NodeArg& x) {
  const auto& shape = x.type().shape;
  const DType dtype = x.type().dtype;
  return shape && (shape->size() == 2 || shape->size() == 4) && (dtype == DType::kFloat || is_reduced_floating(dtype));
}

Attributes copied(const Node& node) {
  Attributes attributes;
  for (const char* name : {"epsilon", "momentum"})
    if (const AttributeValue* value = node.find_attribute(name)) attributes[name] = *value;
  return attributes;
}

// What only cuDNN's backward reads stays with the node.
void split_forward(Graph& graph, Node& node) {
  enum { kY, kNewMean, kNewVar, kMean, kInvstd };
  Node* statistics = added_before(graph, kDomain, "BatchNormStatistics", node.inputs(), 6, copied(node), node);
  Node* affine = added_before(graph, kDomain, "BatchNormAffine",
                              {node.input(0), statistics->output(2), statistics->output(3)}, 1, {}, node);
  const std::pair<size_t, std::pair<Node*, size_t>> moves[] = {
      {kY, {affine, 0}}, {kMean, {statistics, 0}}, {kInvstd, {statistics, 1}}};
  for (const auto& [from, to] : moves)
    if (NodeArg* value = node.output(from)) hand_over(graph, value, to.first, to.second);
  for (const auto& [from, to] : {std::pair<size_t, size_t>{kNewVar, 5}, {kNewMean, 4}}) {
    if (NodeArg* value = node.output(from))
      hand_over(graph, value, statistics, to);
    else
      graph.drop_output(statistics, to);
  }
}

// The ReLU between the normalized x and its gradient; null where there is none or others read what it has to find.
Node* relu_of(const Node& node) {
  Node* gradient = node.input(0)->producer();
  if (!is(gradient, kDomain, "ReluGrad") || gradient->output(0)->uses().size() != 1) return nullptr;
  const Node* relu = gradient->input(1)->producer();
  if (!is(relu, "", "Relu") || gradient->output(0)->is_graph_output()) return nullptr;
  const Node* affine = relu->input(0)->producer();
  return is(affine, kDomain, "BatchNormAffine") && affine->input(0) == node.input(1) ? gradient : nullptr;
}

void split_gradient(Graph& graph, Node& node) {
  NodeArg *dy = node.input(0), *x = node.input(1);
  std::vector<NodeArg*> operands(node.inputs().begin(), node.inputs().begin() + 5);
  Node* relu = relu_of(node);
  NodeArg* flows = dy;  // into x's gradient
  if (relu) {
    const Node& affine = *relu->input(1)->producer()->input(0)->producer();
    NodeArg* given = relu->input(0);
    operands[0] = given;
    operands.insert(operands.end(), {affine.input(1), affine.input(2)});
    NodeArg* y = added_before(graph, kDomain, "BatchNormAffine", affine.inputs(), 1, {}, node)->output(0);
    flows = added_before(graph, kDomain, "ReluGrad", {given, y}, 1, {}, node)->output(0);
  }
  Node* sums = added_before(graph, kDomain, "BatchNormSums", operands, 5, {}, node);
  NodeArg* dx = node.output(0);
  if (dx) {
    const std::vector<NodeArg*> of{flows, x, sums->output(2), sums->output(3), sums->output(4)};
    hand_over(graph, dx, added_before(graph, kDomain, "BatchNormInputGrad", of, 1, {}, node), 0);
  }
  for (size_t i : {size_t{1}, size_t{0}}) {
    if (NodeArg* value = node.output(i + 1))
      hand_over(graph, value, sums, i);
    else
      graph.drop_output(sums, i);
  }
  graph.remove(&node);
  if (relu) graph.remove(relu);
}

}  // namespace

size_t split_batch_norm(Graph& graph) {
  std::vector<Node*> forward;
  size_t count = 0;
  for (Node* node : graph.nodes()) {
    if (!is(node, kDomain, "BatchNormTraining") || !splits(*node->input(0))) continue;
    split_forward(graph, *node);
    forward.push_back(node);
  }
  for (Node* node : graph.nodes()) {
    if (!is(node, kDomain, "BatchNormTrainingGrad") || !splits(*node->input(1))) continue;
    split_gradient(graph, *node);
    ++count;
  }
  for (Node* node : forward) graph.remove(node);
  return count + forward.size();
}

}  // namespace ortmodule

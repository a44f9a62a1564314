#include "transforms/training_mode.h"

#include <functional>

#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

constexpr size_t kDropoutMode = 2;

bool follows(const Node& node) {
  if (node.qualified_op() == "Dropout") return !node.input(kDropoutMode);
  return node.qualified_op() == "BatchNormalization" && !node.find_attribute("training_mode");
}

void for_each_follower(Graph& graph, const std::function<void(Node&)>& f) {
  const auto look = [&](Graph& one) {
    one.for_each([&](Node& node) {
      if (follows(node)) f(node);
    });
  };
  look(graph);
  for_all_subgraphs(graph, look);
}

}  // namespace

bool follows_training_mode(Graph& graph) {
  bool any = false;
  for_each_follower(graph, [&](Node&) { any = true; });
  return any;
}

void set_training_mode(Graph& graph) {
  for_each_follower(graph, [](Node& node) {
    if (node.op() == "Dropout")
      node.set_input(kDropoutMode, node.graph().constant(TensorData::scalar(DType::kBool, 1)));
    else
      node.set_attribute("training_mode", int64_t{1});
  });
}

}  // namespace ortmodule

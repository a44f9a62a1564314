#include "compile/training_graph.h"

#include <algorithm>

#include "base/status.h"
#include "compile/result_owners.h"
#include "compile/stages.h"
#include "onnx/export.h"
#include "records/resolve.h"
#include "transforms/lower_portable.h"

namespace ortmodule {
namespace {

NodeArg* named(const std::vector<NodeArg*>& values, const std::string& name, const char* what) {
  for (NodeArg* value : values)
    if (value->name() == name) {
      const DType dtype = value->type().dtype;
      ORTMODULE_CHECK_ARG(is_floating(dtype) || dtype == DType::kUndefined, "the ", what, " '", name, "' of type ",
                          value->type().text(), " cannot have a gradient");
      return value;
    }
  fail(ErrorCode::kInvalidArgument, "the model has no ", what, " '", name, "'");
}

Node* add_node(Graph& graph, const char* op, NodeArg* input, const std::string& name, Attributes attributes = {}) {
  Node* node = graph.add_node("", op, {input}, {name}, std::move(attributes));
  node->set_phase(Phase::kBackward);
  infer_node(*node);
  return node;
}

NodeArg* zeros_like(Graph& graph, NodeArg* value) {
  TensorData zero = TensorData::scalar(value->type().dtype, 0);
  zero.dims = {1};
  NodeArg* shape = add_node(graph, "Shape", value, graph.fresh_name(value->name() + "_shape"))->output(0);
  return add_node(graph, "ConstantOfShape", shape, graph.fresh_name(value->name() + "_zeros"), {{"value", zero}})
      ->output(0);
}

// The builder's input for a gradient becomes the number 1 for a loss, else an input with the promised name.
void seed(Graph& graph, NodeArg* dy, const NodeArg& y, bool is_loss) {
  if (is_loss) {
    ORTMODULE_CHECK_ARG(y.type().shape && y.type().shape->empty(), "the loss '", y.name(), "' should be a scalar, got ",
                        y.type().text());
    graph.replace_all_uses(dy, graph.constant(TensorData::scalar(y.type().dtype, 1)));
  } else {
    graph.replace_all_uses(dy, graph.add_input(y.name() + "_grad", y.type()));
  }
  graph.remove_input(dy);
}

void add_gradient(Graph& graph, const TrainingGraphRequest& request) {
  GradientRequest gradient;
  for (const std::string& name : request.xs) gradient.xs.push_back(named(graph.inputs(), name, "input"));
  for (const std::string& name : request.losses) gradient.ys.push_back(named(graph.outputs(), name, "output"));
  for (const std::string& name : request.outputs) gradient.ys.push_back(named(graph.outputs(), name, "output"));
  refuse_gradients_through_containers(graph, gradient.xs);
  const GradientResult result = build_gradient(graph, gradient);
  for (size_t i = 0; i < gradient.xs.size(); ++i) {
    NodeArg* x = gradient.xs[i];
    NodeArg* dx = result.dxs[i] ? result.dxs[i] : zeros_like(graph, x);
    graph.add_output(add_node(graph, "Identity", dx, x->name() + "_grad")->output(0));
  }
  for (size_t i = 0; i < gradient.ys.size(); ++i)
    if (result.dys[i]) seed(graph, result.dys[i], *gradient.ys[i], i < request.losses.size());
}

}  // namespace

std::string training_graph(std::string_view model, const TrainingGraphRequest& request) {
  StageLog log(false);
  std::unique_ptr<Graph> graph = imported(model, {}, log);
  take_result_owners(*graph);  // of no use to others
  PassSettings settings;       // dropout is the standard's operator, whose mask backward reads
  settings.trainable = request.xs;
  transform(*graph, PassStage::kForward, settings);
  resolve(*graph);
  settings.trainable.clear();
  add_gradient(*graph, request);
  transform(*graph, PassStage::kJoint, settings);
  resolve(*graph);
  graph = lower_portable(*graph);
  transform(*graph, PassStage::kJoint, settings);
  resolve(*graph);
  // Phases are a matter of our planner: other runtimes need no mark on their nodes.
  graph->for_each([](Node& node) { node.set_phase(Phase::kForward); });
  ExportOptions options;
  options.portable = true;
  return export_model(*graph, options);
}

}  // namespace ortmodule

#include "compile/training_graph.h"

#include <algorithm>

#include "base/status.h"
#include "gradient/gradient_graph_builder.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "records/resolve.h"
#include "records/upgrade.h"
#include "runtime/constant_evaluator.h"
#include "transforms/inline_functions.h"
#include "transforms/lower_portable.h"
#include "transforms/pass_list.h"
#include "transforms/subgraphs.h"

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

void transform(Graph& graph, PassStage stage, const std::vector<std::string>& xs) {
  TransformContext context;
  context.training = stage == PassStage::kForward;
  context.options.dropout = "exact";  // the standard's operator, whose mask backward reads
  context.evaluate = evaluate_constant_node;
  for (const std::string& name : xs)
    if (const NodeArg* in = graph.find(name)) context.grad_inputs.insert(in);
  make_passes(stage, {}).run(graph, context);
  graph.remove_unused_initializers();
  share_constants_with_subgraphs(graph);
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

std::string training_graph(const void* model, size_t size, const TrainingGraphRequest& request) {
  std::unique_ptr<Graph> graph = import_model(model, size, {});
  upgrade(*graph);
  inline_functions(*graph);
  share_constants_with_subgraphs(*graph);
  resolve(*graph);
  transform(*graph, PassStage::kForward, request.xs);
  resolve(*graph);
  add_gradient(*graph, request);
  transform(*graph, PassStage::kJoint, {});
  resolve(*graph);
  graph = lower_portable(*graph);
  transform(*graph, PassStage::kJoint, {});
  resolve(*graph);
  // Phases are a matter of our planner: other runtimes need no mark on their nodes.
  graph->for_each([](Node& node) { node.set_phase(Phase::kForward); });
  ExportOptions options;
  options.portable = true;
  return export_model(*graph, options);
}

}  // namespace ortmodule

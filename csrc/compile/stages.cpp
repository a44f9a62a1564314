#include "compile/stages.h"

#include <unordered_set>
#include <utility>

#include "base/limits.h"
#include "base/status.h"
#include "onnx/import.h"
#include "records/resolve.h"
#include "records/upgrade.h"
#include "runtime/constant_evaluator.h"
#include "transforms/inline_functions.h"
#include "transforms/subgraphs.h"
#include "transforms/training_mode.h"

namespace ortmodule {

void StageLog::done(const std::string& name, const Graph& graph) {
  if (const auto& allowance = Allowance::current()) allowance->check_time();
  const auto now = Clock::now();
  Stage stage{name, std::chrono::duration<double>(now - start_).count(), graph.node_count(), nullptr};
  if (keep_) stage.graph = graph.clone();
  if (history_) history_->stage(name, stage.seconds, graph);
  stages_.push_back(std::move(stage));
  start_ = Clock::now();
}

std::unique_ptr<Graph> imported(std::string_view model, const ImportOptions& options, StageLog& log, ModelInfo* info) {
  std::unique_ptr<Graph> graph = import_model(model.data(), model.size(), options, info);
  log.done("imported", *graph);
  upgrade(*graph);
  inline_functions(*graph, options.limits);
  if (info) info->follows_training_mode = follows_training_mode(*graph);
  if (options.training_mode) set_training_mode(*graph);
  share_constants_with_subgraphs(*graph);
  resolve(*graph);
  log.done("resolved", *graph);
  return graph;
}

std::vector<PassRecord> transform(Graph& graph, PassStage stage, const PassSettings& settings) {
  TransformContext context;
  context.stage = stage;
  context.training = settings.training && stage == PassStage::kForward;
  context.options.dropout = settings.counted_dropout ? "fast" : "exact";
  context.options.whole_masks = settings.whole_masks;
  context.evaluate = evaluate_constant_node;
  context.prices = settings.prices;
  context.sizes = settings.sizes;
  for (const std::string& name : settings.trainable)
    if (const NodeArg* in = graph.find(name)) context.grad_inputs.insert(in);
  TransformerManager manager = make_passes(stage, settings.manager, settings.choice);
  manager.run(graph, context);
  graph.remove_unused_initializers();
  context.grad_inputs.clear();
  share_constants_with_subgraphs(graph);
  for_all_subgraphs(graph, [&](Graph& body) {
    manager.run(body, context);
    body.remove_unused_initializers();
  });
  return manager.records();
}

Roots find_roots(const Graph& graph, const std::vector<std::string>& trainable) {
  Roots roots;
  const std::unordered_set<std::string> wanted(trainable.begin(), trainable.end());
  std::vector<NodeArg*> xs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    NodeArg* in = graph.inputs()[i];
    if (!wanted.count(in->name())) continue;
    ORTMODULE_CHECK_ARG(is_floating(in->type().dtype), "the input '", in->name(), "' of type ", in->type().text(),
                        " cannot have a gradient");
    roots.x_inputs.push_back(i);
    xs.push_back(in);
  }
  refuse_gradients_through_containers(graph, xs);
  const std::vector<char> depends = differentiable_values(graph, xs);
  for (size_t i = 0; i < graph.outputs().size(); ++i)
    if (depends[graph.outputs()[i]->id()]) roots.y_outputs.push_back(i);
  return roots;
}

GradientResult differentiate(Graph& graph, const Roots& roots, const std::vector<bool>& mask) {
  GradientRequest request;
  const std::vector<NodeArg*> outputs = graph.outputs();
  for (size_t k = 0; k < roots.y_outputs.size(); ++k)
    if (mask.empty() || mask[k]) request.ys.push_back(outputs[roots.y_outputs[k]]);
  for (size_t i : roots.x_inputs) request.xs.push_back(graph.inputs()[i]);
  GradientResult result = build_gradient(graph, request);
  for (NodeArg* dx : result.dxs)
    if (dx) graph.add_output(dx);
  return result;
}

std::vector<NodeArg*> gradient_outputs(const Graph& graph, size_t forward, const std::vector<NodeArg*>& dxs) {
  std::vector<NodeArg*> out;
  size_t next = forward;
  for (NodeArg* dx : dxs) out.push_back(dx ? graph.outputs()[next++] : nullptr);
  return out;
}

}  // namespace ortmodule

#include "session/training/step_graph.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <utility>

#include "autograd/gradient_writer.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "session/engine_options.h"
#include "session/value_infos.h"

namespace ortmodule {
namespace {

size_t place_of(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

SessionSettings settings_of(const TrainingSessionOptions& options, const Artifacts& artifacts,
                            const ArtifactGraph& graph, bool training) {
  SessionSettings settings = engine_settings(options);
  settings.training = training;
  settings.weights = graph.tensors;
  for (const ArtifactTensor& tensor : artifacts.tensors)
    if (training && tensor.trainable && place_of(graph.tensors, tensor.name) < graph.tensors.size())
      settings.trainable.push_back(tensor.name);
  for (size_t i = 0; i < graph.written.size(); ++i)
    settings.mutations.emplace_back(graph.outputs.size() + i,
                                    graph.inputs.size() + place_of(graph.tensors, graph.written[i].second));
  return settings;
}

// A checkpoint's tensor against what the graph takes.
void check_tensor(const at::Tensor& tensor, const ValueInfo& info, DType dtype) {
  bool fits = to_dtype(tensor.scalar_type()) == dtype;
  if (info.has_rank) {
    fits = fits && info.shape.size() == static_cast<size_t>(tensor.dim());
    for (size_t i = 0; fits && i < info.shape.size(); ++i)
      fits = info.shape[i] < 0 || info.shape[i] == tensor.size(static_cast<int64_t>(i));
  }
  ORTMODULE_CHECK_ARG(fits, "the checkpoint is of another model: its '", info.name, "' is of ",
                      c10::toString(tensor.scalar_type()), " and shape ", tensor.sizes(), ", the model's of ",
                      info.dtype, " and ", at::IntArrayRef(info.shape));
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

StepGraph::StepGraph(std::string_view model, const Artifacts& artifacts, const ArtifactGraph& graph,
                     const TrainingSessionOptions& options, bool training, const TrainingState& state)
    : given_(graph.inputs.size()), session_(model, settings_of(options, artifacts, graph, training)) {
  std::vector<std::string> outputs = graph.outputs;
  for (const auto& [output, tensor] : graph.written) outputs.push_back(output);
  const CompiledModel& compiled = session_.compiled();
  ORTMODULE_CHECK_GRAPH(compiled.input_names == joined(graph.inputs, graph.tensors) && compiled.output_names == outputs,
                        "'", artifacts.path_of(graph.file), "' is not the graph that artifacts.json describes");
  const std::vector<ValueInfo> infos = input_infos(session_);
  for (const std::string& name : graph.tensors) {
    const size_t place = given_ + tensors_.size();
    tensors_.push_back(state.tensor(name));
    check_tensor(tensors_.back(), infos[place], session_.input_types()[place]);
  }
  const std::vector<size_t>& ys = compiled.agent->program().y_outputs;
  ORTMODULE_CHECK_GRAPH(!training || (!ys.empty() && ys.front() == 0), "the loss of '", artifacts.path_of(graph.file),
                        "' depends on no trainable tensor");
}

std::vector<at::Tensor> StepGraph::arguments(std::vector<at::Tensor> given) const {
  ORTMODULE_CHECK_ARG(given.size() == given_, "a step takes ", given_, " tensors, got ", given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    ORTMODULE_CHECK_ARG(given[i].defined(), "the input '", session_.compiled().input_names[i], "' is not given");
    given[i] = given[i].to(session_.device());
  }
  given.insert(given.end(), tensors_.begin(), tensors_.end());
  return given;
}

std::vector<at::Tensor> StepGraph::run(std::vector<at::Tensor> given) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> held = arguments(std::move(given));
  std::vector<at::Tensor> values = held;  // kernels overwrite what nobody else has
  return session_.forward(std::move(values), nullptr);
}

at::Tensor StepGraph::run_with_gradients(std::vector<at::Tensor> given, double scale) const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> held = arguments(std::move(given));
  std::vector<at::Tensor> values = held;
  std::shared_ptr<TrainingAgent::RunState> run;
  const at::Tensor loss = session_.forward(std::move(values), &run).front();
  add_gradients(*run, loss, scale, held);
  return loss;
}

void StepGraph::add_gradients(TrainingAgent::RunState& run, const at::Tensor& loss, double scale,
                              const std::vector<at::Tensor>& arguments) const {
  TrainingAgent& agent = *session_.compiled().agent;
  const TrainingProgram& program = agent.program();
  std::vector<at::Tensor> dys(program.y_outputs.size());
  dys[0] = at::full_like(loss, scale);
  GradientWriter writer(program.x_inputs.size());
  agent.backward(run, dys, false, [&](size_t k, at::Tensor gradient) {
    const at::Tensor& leaf = arguments[program.x_inputs[k]];
    ORTMODULE_INTERNAL(!gradient.defined() || writer.write(leaf, leaf.mutable_grad(), gradient),
                       "a gradient of other sizes than its parameter");
  });
  writer.finish();
}

std::vector<ValueInfo> StepGraph::inputs() const {
  std::vector<ValueInfo> infos = input_infos(session_);
  infos.resize(given_);
  return infos;
}

std::vector<ValueInfo> StepGraph::outputs() const {
  std::vector<ValueInfo> infos = output_infos(session_);
  infos.resize(infos.size() - session_.mutations().size());
  return infos;
}

}  // namespace ortmodule

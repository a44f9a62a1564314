// The public class of C++ programs that run the halves themselves, on a GraphFunction's session.
#include "ortmodule/training_agent.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "runtime/value_cache.h"
#include "session/graph_function_state.h"

namespace ortmodule::training {

using RunState = ortmodule::TrainingAgent::RunState;

struct TrainingAgent::Cached {
  CachedSteps steps;
};

namespace {

// Autograd's rule: a gradient has its output's sizes and type.
void check_gradients(const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& outputs,
                     const std::vector<size_t>& differentiable, const std::vector<ValueInfo>& infos) {
  ORTMODULE_CHECK_ARG(gradients.size() == outputs.size(), "the graph has ", outputs.size(), " outputs, got ",
                      gradients.size(), " gradients");
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const bool has = std::find(differentiable.begin(), differentiable.end(), i) != differentiable.end();
    ORTMODULE_CHECK_ARG(has, "the output '", infos[i].name, "' has no gradient: it depends on no trainable input");
    const at::Tensor& output = outputs[i];
    ORTMODULE_CHECK_ARG(gradients[i].sizes() == output.sizes() && gradients[i].scalar_type() == output.scalar_type() &&
                            gradients[i].device() == output.device(),
                        "the gradient of '", infos[i].name, "' is of ", c10::toString(gradients[i].scalar_type()),
                        " and shape ", gradients[i].sizes(), ", the output of ", c10::toString(output.scalar_type()),
                        " and ", output.sizes());
  }
}

// What a state holds.
struct PendingRun {
  std::shared_ptr<RunState> run;
  std::vector<at::Tensor> outputs;  // as without_memory() has them
};

// Of one element each, for sizes and types; undefined where nothing has a gradient.
std::vector<at::Tensor> without_memory(const std::vector<at::Tensor>& outputs,
                                       const std::vector<size_t>& differentiable) {
  std::vector<at::Tensor> out(outputs.size());
  for (size_t i : differentiable) out[i] = outputs[i].new_empty({}).expand(outputs[i].sizes());
  return out;
}

}  // namespace

TrainingAgent::TrainingAgent(const GraphFunction& function, const std::vector<std::string>& weights)
    : state_(function.state_) {
  const std::vector<std::string>& names = state_->session.compiled().input_names;
  std::vector<size_t> places;
  for (const std::string& name : weights) {
    const auto found = std::find(names.begin(), names.end(), name);
    ORTMODULE_CHECK_ARG(found != names.end(), "the weight '", name, "' is no input of the graph");
    places.push_back(static_cast<size_t>(found - names.begin()));
  }
  cached_ = std::make_shared<const Cached>(Cached{state_->session.compiled().agent->cached_steps(places)});
}

std::vector<at::Tensor> TrainingAgent::run_forward(std::vector<at::Tensor> inputs, PartialGraphExecutionState& state,
                                                   OrtValueCache* cache) const {
  state = {};
  auto pending = std::make_shared<PendingRun>();
  std::vector<at::Tensor> values = inputs;  // kernels overwrite what nobody else has
  OrtValueCache none;
  const CachedRun cached{cached_->steps, cache ? *cache : none};
  std::vector<at::Tensor> outputs =
      state_->session.forward(std::move(values), &pending->run, cache ? &cached : nullptr);
  pending->outputs = without_memory(outputs, state_->session.compiled().agent->program().y_outputs);
  state.run_ = std::move(pending);
  state.owner_ = state_;
  return outputs;
}

std::vector<at::Tensor> TrainingAgent::run_backward(std::vector<at::Tensor> gradients,
                                                    PartialGraphExecutionState& state) const {
  ORTMODULE_CHECK(state.is_pending(), kRuntime, "the state has no forward whose backward could run");
  ORTMODULE_CHECK_ARG(state.owner_ == state_, "the state is of another graph's forward");
  const auto pending = std::static_pointer_cast<PendingRun>(state.run_);
  const Session& session = state_->session;
  const TrainingProgram& program = session.compiled().agent->program();
  check_gradients(gradients, pending->outputs, program.y_outputs, state_->outputs);
  std::vector<at::Tensor> dys;
  for (size_t y : program.y_outputs) dys.push_back(gradients[y]);
  std::vector<at::Tensor> found(program.x_inputs.size());
  state = {};
  if (!program.x_inputs.empty() && pending->run)
    session.compiled().agent->backward(*pending->run, dys, false,
                                       [&](size_t k, at::Tensor gradient) { found[k] = std::move(gradient); });
  std::vector<at::Tensor> out;
  for (const std::string& name : state_->trainable) {
    const auto place = std::find(program.x_names.begin(), program.x_names.end(), name);
    out.push_back(place == program.x_names.end() ? at::Tensor()
                                                 : found[static_cast<size_t>(place - program.x_names.begin())]);
  }
  return out;
}

}  // namespace ortmodule::training

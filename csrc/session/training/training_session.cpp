// The public class of C++ programs that train: one lock around a state, the graphs on it, and the optimizer's rules.
#include "ortmodule/training_session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "compile/inference_model.h"
#include "kernels/aten_bridge.h"
#include "onnx/model_file.h"
#include "session/training/artifacts.h"
#include "session/training/step_graph.h"
#include "session/training/training_state.h"
#include "session/training/update_rule.h"
#include "session/value_infos.h"

namespace ortmodule {
namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr const char* kNoGradient = "no parameter has a gradient; train_step comes before ";

class ArtifactSession : public TrainingSession {
 public:
  ArtifactSession(const std::string& folder, const TrainingSessionOptions& options)
      : options_(options),
        artifacts_(read_artifacts(folder)),
        state_(artifacts_, options.checkpoint.empty() ? artifacts_.path_of(artifacts_.checkpoint) : options.checkpoint,
               parse_device(options.device)),
        evaluation_file_(open_model(artifacts_.path_of(artifacts_.evaluation.file))),
        inference_file_(open_model(artifacts_.path_of(artifacts_.inference.file))),
        training_(*open_model(artifacts_.path_of(artifacts_.training.file)).bytes, artifacts_, artifacts_.training,
                  options, true, state_) {
    for (const ArtifactRule& rule : artifacts_.rules)
      rules_.emplace_back(artifacts_.path_of(rule.file), rule.states, parse_device(options.device),
                          options.allow_aten_operators);
  }

  std::vector<ValueInfo> inputs() const override { return training_.inputs(); }

  std::vector<ValueInfo> outputs() override {
    const Lock lock(mutex_);
    return evaluation().outputs();
  }

  at::Tensor train_step(std::vector<at::Tensor> inputs, double gradient_scale) override {
    const Lock lock(mutex_);
    return training_.run_with_gradients(std::move(inputs), gradient_scale);
  }

  std::vector<at::Tensor> eval_step(std::vector<at::Tensor> inputs) override {
    const Lock lock(mutex_);
    return evaluation().run(std::move(inputs));
  }

  void zero_grad() override {
    const Lock lock(mutex_);
    for (const auto& [name, tensor] : state_.tensors())
      if (tensor.grad().defined()) tensor.mutable_grad().reset();
  }

  double clip_grad_norm(double max_norm) override {
    const Lock lock(mutex_);
    const at::NoGradGuard no_grad;
    ORTMODULE_CHECK_ARG(max_norm >= 0, "a norm is a number from 0 on, got ", max_norm);
    std::vector<at::Tensor> gradients, norms;
    for (const ArtifactTensor& tensor : artifacts_.tensors) {
      const at::Tensor& gradient = state_.tensor(tensor.name).grad();
      if (!gradient.defined()) continue;
      gradients.push_back(gradient);
      norms.push_back(at::linalg_vector_norm(gradient));
    }
    ORTMODULE_CHECK_ARG(!norms.empty(), kNoGradient, "clip_grad_norm");
    const at::Tensor whole = at::linalg_vector_norm(at::stack(norms)), factor = max_norm / (whole + 1e-6);
    for (const at::Tensor& gradient : gradients) gradient.mul_(factor.clamp_max(1.0));
    return whole.item<double>();
  }

  void optimizer_step() override {
    const Lock lock(mutex_);
    bool any = false;
    for (size_t i = 0; i < rules_.size(); ++i) {
      const ArtifactRule& rule = artifacts_.rules[i];
      const double rate = state_.rate(rule.group);
      for (const std::string& name : rule.parameters) {
        const at::Tensor& parameter = state_.tensor(name);
        if (!parameter.grad().defined()) continue;
        std::vector<at::Tensor> states;
        for (const std::string& one : rule.states)
          states.push_back(state_.tensor(TrainingState::state_name(one, name)));
        rules_[i].apply(rate, parameter, parameter.grad(), states);
        any = true;
      }
    }
    ORTMODULE_CHECK_ARG(any, kNoGradient, "optimizer_step");
    state_.count_step();
  }

  int64_t step_count() const override {
    const Lock lock(mutex_);
    return state_.steps();
  }

  double learning_rate(size_t group) const override {
    const Lock lock(mutex_);
    return state_.rate(group);
  }

  void set_learning_rate(double rate, std::optional<size_t> group) override {
    const Lock lock(mutex_);
    state_.set_rate(rate, group);
  }

  void set_linear_schedule(int64_t warmup_steps, int64_t total_steps) override {
    const Lock lock(mutex_);
    state_.set_schedule(warmup_steps, total_steps);
  }

  void save_checkpoint(const std::string& path) const override {
    const Lock lock(mutex_);
    state_.save(path);
  }

  void load_checkpoint(const std::string& path) override {
    const Lock lock(mutex_);
    state_.load(path);
  }

  std::vector<TrainingTensor> tensors() const override {
    std::vector<TrainingTensor> out;
    for (const ArtifactTensor& tensor : artifacts_.tensors)
      out.push_back({tensor.name, tensor.trainable, state_.tensor(tensor.name).sizes().vec()});
    return out;
  }

  at::Tensor tensor(const std::string& name) const override {
    const Lock lock(mutex_);
    const at::NoGradGuard no_grad;
    return state_.tensor(name).clone();
  }

  at::Tensor gradient(const std::string& name) const override {
    const Lock lock(mutex_);
    const at::Tensor& gradient = state_.tensor(name).grad();
    return gradient.defined() ? gradient.clone() : at::Tensor();
  }

  void set_tensor(const std::string& name, const at::Tensor& value) override {
    const Lock lock(mutex_);
    const at::NoGradGuard no_grad;
    const at::Tensor& target = state_.tensor(name);
    ORTMODULE_CHECK_ARG(value.defined(), "there is no value for '", name, "'");
    ORTMODULE_CHECK_ARG(value.sizes() == target.sizes() && value.scalar_type() == target.scalar_type(), "'", name,
                        "' is of ", c10::toString(target.scalar_type()), " and shape ", target.sizes(),
                        ", the value of ", c10::toString(value.scalar_type()), " and ", value.sizes());
    target.copy_(value);
  }

  void export_model_for_inference(const std::string& path, const std::vector<std::string>& outputs) const override {
    const Lock lock(mutex_);
    std::map<std::string, TensorData> weights;
    for (const std::string& name : artifacts_.inference.tensors) weights[name] = shared_data_from(state_.tensor(name));
    write_inference_model(*inference_file_.bytes, weights, outputs, path);
  }

 private:
  // Compiled when somebody evaluates first: who only trains has no use for it.
  const StepGraph& evaluation() {
    if (!evaluation_)
      evaluation_.emplace(*evaluation_file_.bytes, artifacts_, artifacts_.evaluation, options_, false, state_);
    return *evaluation_;
  }

  const TrainingSessionOptions options_;
  const Artifacts artifacts_;
  TrainingState state_;
  // Open from the start: others may replace the artifacts meanwhile.
  const ModelFile evaluation_file_, inference_file_;
  const StepGraph training_;
  std::optional<StepGraph> evaluation_;
  std::deque<UpdateRule> rules_;
  mutable std::mutex mutex_;
};

}  // namespace

std::shared_ptr<TrainingSession> TrainingSession::load(const std::string& folder,
                                                       const TrainingSessionOptions& options) {
  return std::make_shared<ArtifactSession>(folder, options);
}

}  // namespace ortmodule

// One of the graphs of artifacts, on the tensors of a state: the step of training, or that of evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "ortmodule/training_session.h"
#include "session/session.h"
#include "session/training/artifacts.h"
#include "session/training/training_state.h"

namespace ortmodule {

class StepGraph {
 public:
  // Throws kInvalidGraph where `model` is not what the artifacts say of `graph`.
  StepGraph(std::string_view model, const Artifacts& artifacts, const ArtifactGraph& graph,
            const TrainingSessionOptions& options, bool training, const TrainingState& state);

  // Those of the caller. What the forward updates is written into the state.
  std::vector<at::Tensor> run(std::vector<at::Tensor> given) const;
  // The first output; adds its gradients, times `scale`, to those that the state's tensors have.
  at::Tensor run_with_gradients(std::vector<at::Tensor> given, double scale) const;

  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;

 private:
  std::vector<at::Tensor> arguments(std::vector<at::Tensor> given) const;
  void add_gradients(TrainingAgent::RunState& run, const at::Tensor& loss, double scale,
                     const std::vector<at::Tensor>& arguments) const;

  size_t given_;
  Session session_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace ortmodule

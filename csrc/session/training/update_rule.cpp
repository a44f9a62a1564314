#include "session/training/update_rule.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "base/status.h"
#include "onnx/model_file.h"

namespace ortmodule {
namespace {

SessionSettings settings_for(c10::Device device, bool allow_aten_operators) {
  SessionSettings settings;
  settings.training = false;
  settings.device = device;
  settings.import.aten_operators = allow_aten_operators;
  return settings;
}

}  // namespace

UpdateRule::UpdateRule(const std::string& path, const std::vector<std::string>& states, c10::Device device,
                       bool allow_aten_operators)
    : session_(*open_model(path).bytes, settings_for(device, allow_aten_operators)) {
  std::vector<std::string> known{"learning_rate", "parameter", "gradient"};
  known.insert(known.end(), states.begin(), states.end());
  const auto place_of = [&](const std::string& name, const char* what) {
    const auto found = std::find(known.begin(), known.end(), name);
    ORTMODULE_CHECK_GRAPH(found != known.end(), "the update rule '", path, "' has the ", what, " '", name,
                          "', which is neither the parameter's nor one of its states");
    return static_cast<size_t>(found - known.begin());
  };
  for (const std::string& name : session_.compiled().input_names) from_.push_back(place_of(name, "input"));
  for (const std::string& name : session_.compiled().output_names) {
    const std::string prefix = "new_";
    const bool is_new = name.compare(0, prefix.size(), prefix) == 0;
    target_.push_back(place_of(is_new ? name.substr(prefix.size()) : name, "output"));
  }
  // The results are the caller's tensors themselves, not copies for somebody who may write them.
  session_.compiled().agent->set_results(0);
}

void UpdateRule::apply(double rate, const at::Tensor& parameter, const at::Tensor& gradient,
                       const std::vector<at::Tensor>& states) const {
  std::vector<at::Tensor> values{at::scalar_tensor(rate, at::kDouble), parameter, gradient};
  values.insert(values.end(), states.begin(), states.end());
  std::vector<at::Tensor> inputs;
  for (size_t place : from_) inputs.push_back(values[place]);
  const std::vector<at::Tensor> results = session_.forward(std::move(inputs), nullptr);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& target = values[target_[i]];
    if (results[i].data_ptr() != target.data_ptr()) target.copy_(results[i]);
  }
}

}  // namespace ortmodule

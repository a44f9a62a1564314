// The public class of C++ programs, on a Session.
#include "ortmodule/graph_function.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "onnx/model_file.h"
#include "session/engine_options.h"
#include "session/graph_function_state.h"
#include "session/report.h"

namespace ortmodule {
namespace {

SessionSettings session_options(const GraphOptions& options) {
  SessionSettings out = engine_settings(options);
  out.training = !options.trainable.empty();
  out.trainable = options.trainable;
  return out;
}

}  // namespace

GraphFunction GraphFunction::load(const std::string& path, const GraphOptions& options) {
  SessionSettings wanted = session_options(options);
  const ModelFile file = open_model(path);
  wanted.import.external_data_dir = file.folder;
  return GraphFunction(std::make_shared<const State>(*file.bytes, wanted));
}

GraphFunction GraphFunction::parse(std::string_view model, const GraphOptions& options) {
  return GraphFunction(std::make_shared<const State>(model, session_options(options)));
}

std::vector<ValueInfo> GraphFunction::inputs() const { return state_->inputs; }
std::vector<ValueInfo> GraphFunction::outputs() const { return state_->outputs; }

std::vector<at::Tensor> GraphFunction::operator()(std::vector<at::Tensor> inputs) const {
  return state_->session.run(std::move(inputs));
}

std::map<std::string, at::Tensor> GraphFunction::run(const std::map<std::string, at::Tensor>& inputs) const {
  std::vector<at::Tensor> values;
  for (const ValueInfo& input : state_->inputs) {
    const auto found = inputs.find(input.name);
    ORTMODULE_CHECK_ARG(found != inputs.end(), "the graph's input '", input.name, "' is not given");
    values.push_back(found->second);
  }
  for (const auto& [name, value] : inputs)
    ORTMODULE_CHECK_ARG(state_->has(name), "the graph has no input '", name, "'");
  std::map<std::string, at::Tensor> outputs;
  const std::vector<at::Tensor> results = state_->session.run(std::move(values));
  for (size_t i = 0; i < results.size(); ++i) outputs[state_->outputs[i].name] = results[i];
  return outputs;
}

std::string GraphFunction::plan() const { return plan_text(state_->session); }

}  // namespace ortmodule

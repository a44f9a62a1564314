// The public class of C++ programs, on a Session.
#include "ortmodule/graph_function.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "session/report.h"
#include "session/session.h"

namespace ortmodule {
namespace {

c10::Device parse_device(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const std::exception&) {
    fail(ErrorCode::kInvalidArgument, "the device '", name, "' is none that torch knows");
  }
}

SessionOptions session_options(const GraphOptions& options) {
  SessionOptions out;
  out.training = !options.trainable.empty();
  out.trainable = options.trainable;
  out.device = parse_device(options.device);
  out.dropout = options.dropout;
  out.matmul = options.matmul;
  out.memory_budget = options.memory_budget;
  out.fusion = options.fusion;
  return out;
}

ValueInfo info_of(const NodeArg& value) {
  ValueInfo info{value.name(), std::string(dtype_name(value.type().dtype))};
  info.has_rank = value.type().shape.has_value();
  if (info.has_rank)
    for (const Dim& size : *value.type().shape) info.shape.push_back(size.is_known() ? size.value() : -1);
  return info;
}

std::vector<ValueInfo> infos_of(const std::vector<NodeArg*>& values, size_t count) {
  std::vector<ValueInfo> infos;
  for (size_t i = 0; i < count; ++i) infos.push_back(info_of(*values[i]));
  return infos;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ORTMODULE_CHECK_ARG(file && !std::filesystem::is_directory(path), "the model '", path, "' cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

struct GraphFunction::State {
  State(std::string_view model, const SessionOptions& options) : session(model, options) {
    const CompiledModel& compiled = session.compiled();
    inputs = infos_of(compiled.graph->inputs(), compiled.input_names.size());
    outputs = infos_of(compiled.graph->outputs(), compiled.output_names.size());
    for (const std::string& name : options.trainable)
      ORTMODULE_CHECK_ARG(has(name), "the trainable '", name, "' is no input of the graph");
    // Passes may have renamed an output's value.
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].name = compiled.output_names[i];
  }

  bool has(const std::string& input) const {
    return std::any_of(inputs.begin(), inputs.end(), [&](const ValueInfo& info) { return info.name == input; });
  }

  Session session;
  std::vector<ValueInfo> inputs, outputs;
};

GraphFunction GraphFunction::load(const std::string& path, const GraphOptions& options) {
  SessionOptions wanted = session_options(options);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  wanted.external_data_dir = folder.empty() ? "." : folder.string();
  return GraphFunction(std::make_shared<const State>(read_file(path), wanted));
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

#include "bindings/training/python_training.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "bindings/values.h"
#include "ortmodule/training_agent.h"
#include "ortmodule/training_session.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

using Described = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>>;

Described named_values(const std::vector<ValueInfo>& infos) {
  Described out;
  for (const ValueInfo& info : infos) out.emplace_back(info.name, info.dtype, info.shape);
  return out;
}

// What the options of both classes have.
template <typename Options>
Options options_of(const py::dict& given) {
  Options options;
  for (const auto& [key, value] : given) {
    const auto name = py::cast<std::string>(key);
    if (name == "device")
      options.device = py::cast<std::string>(value);
    else if (name == "dropout")
      options.dropout = py::cast<std::string>(value);
    else if (name == "matmul")
      options.matmul = py::cast<std::string>(value);
    else if (name == "memory_budget")
      options.memory_budget = py::cast<std::optional<double>>(value);
    else if (name == "fusion")
      options.fusion = py::cast<bool>(value);
    else if (name == "allow_aten_operators")
      options.allow_aten_operators = py::cast<bool>(value);
    else
      fail(ErrorCode::kInvalidArgument, "unknown session option '", name, "'");
  }
  return options;
}

std::shared_ptr<TrainingSession> make_training_session(const std::string& folder, const std::string& checkpoint,
                                                       const py::dict& given) {
  auto options = options_of<TrainingSessionOptions>(given);
  options.checkpoint = checkpoint;
  const py::gil_scoped_release release;
  return TrainingSession::load(folder, options);
}

// A graph, and what runs its halves.
struct Agent {
  GraphFunction function;
  training::TrainingAgent agent;
};

Agent make_agent(const std::variant<py::bytes, std::string>& model, const std::vector<std::string>& trainable,
                 const std::vector<std::string>& weights, const py::dict& given) {
  auto options = options_of<GraphOptions>(given);
  options.trainable = trainable;
  const py::bytes* const bytes = std::get_if<py::bytes>(&model);
  const std::string_view text = bytes ? static_cast<std::string_view>(*bytes) : std::string_view();
  const py::gil_scoped_release release;
  GraphFunction function =
      bytes ? GraphFunction::parse(text, options) : GraphFunction::load(std::get<std::string>(model), options);
  training::TrainingAgent agent(function, weights);
  return {std::move(function), std::move(agent)};
}

using RunState = training::PartialGraphExecutionState;
// A class of its own: Python's dicts become maps otherwise, and are copied.
struct RunCache {
  training::OrtValueCache values;
};

std::vector<at::Tensor> tensors_of(const py::sequence& values) {
  std::vector<at::Tensor> out;
  for (const py::handle value : values) out.push_back(read_value(value, DType::kUndefined));
  return out;
}

py::list run_forward(const Agent& agent, const py::sequence& inputs, RunState& state, RunCache* cache) {
  std::vector<at::Tensor> values = tensors_of(inputs);
  {
    const py::gil_scoped_release release;
    values = agent.agent.run_forward(std::move(values), state, cache ? &cache->values : nullptr);
  }
  return write_values(values);
}

py::list run_backward(const Agent& agent, const py::sequence& gradients, RunState& state) {
  std::vector<at::Tensor> values = tensors_of(gradients);
  {
    const py::gil_scoped_release release;
    values = agent.agent.run_backward(std::move(values), state);
  }
  return write_values(values);
}

std::vector<std::string> names_in(const RunCache& cache) {
  std::vector<std::string> names;
  for (const auto& [name, value] : cache.values) names.push_back(name);
  return names;
}

void register_agent(py::module_& m) {
  py::class_<RunState>(m, "PartialGraphExecutionState", "What a forward has left for its backward.")
      .def(py::init<>())
      .def_property_readonly("is_pending", &RunState::is_pending);
  py::class_<RunCache>(m, "OrtValueCache",
                       "Values that depend on a graph's weights alone. To be emptied whenever a weight has changed.")
      .def(py::init<>())
      .def("clear", [](RunCache& cache) { cache.values.clear(); })
      .def("names", &names_in)
      .def("__len__", [](const RunCache& cache) { return cache.values.size(); });
  py::class_<Agent>(m, "TrainingAgent", "What ortmodule.training.TrainingAgent runs.")
      .def(py::init(&make_agent), py::arg("model"), py::arg("trainable"), py::arg("weights"), py::arg("options"))
      .def_property_readonly("inputs", [](const Agent& a) { return named_values(a.function.inputs()); })
      .def_property_readonly("outputs", [](const Agent& a) { return named_values(a.function.outputs()); })
      .def("run_forward", &run_forward, py::arg("inputs"), py::arg("state"), py::arg("cache"))
      .def("run_backward", &run_backward, py::arg("gradients"), py::arg("state"));
}

}  // namespace

void register_training(py::module_& m) {
  register_agent(m);
  using Released = py::call_guard<py::gil_scoped_release>;
  using Session = TrainingSession;
  py::class_<Session, std::shared_ptr<Session>>(m, "TrainingSession", "What ortmodule.TrainingSession runs.")
      .def(py::init(&make_training_session), py::arg("folder"), py::arg("checkpoint"), py::arg("options"))
      .def_property_readonly("inputs", [](const Session& s) { return named_values(s.inputs()); })
      .def_property_readonly("outputs", [](Session& s) { return named_values(s.outputs()); })
      .def_property_readonly("tensors",
                             [](const Session& s) {
                               std::vector<std::tuple<std::string, bool, std::vector<int64_t>>> out;
                               for (const TrainingTensor& t : s.tensors())
                                 out.emplace_back(t.name, t.trainable, t.shape);
                               return out;
                             })
      .def("train_step", &Session::train_step, py::arg("inputs"), py::arg("gradient_scale"), Released())
      .def("eval_step", &Session::eval_step, py::arg("inputs"), Released())
      .def("zero_grad", &Session::zero_grad, Released())
      .def("clip_grad_norm", &Session::clip_grad_norm, py::arg("max_norm"), Released())
      .def("optimizer_step", &Session::optimizer_step, Released())
      .def_property_readonly("step_count", &Session::step_count)
      .def("learning_rate", &Session::learning_rate, py::arg("group"), Released())
      .def("set_learning_rate", &Session::set_learning_rate, py::arg("rate"), py::arg("group"), Released())
      .def("set_linear_schedule", &Session::set_linear_schedule, py::arg("warmup_steps"), py::arg("total_steps"),
           Released())
      .def("save_checkpoint", &Session::save_checkpoint, py::arg("path"), Released())
      .def("load_checkpoint", &Session::load_checkpoint, py::arg("path"), Released())
      .def("tensor", &Session::tensor, py::arg("name"), Released())
      .def(
          "gradient", [](const Session& s, const std::string& name) { return write_value(s.gradient(name)); },
          py::arg("name"))
      .def("set_tensor", &Session::set_tensor, py::arg("name"), py::arg("value"), Released())
      .def("export_model_for_inference", &Session::export_model_for_inference, py::arg("path"), py::arg("outputs"),
           Released());
}

}  // namespace ortmodule

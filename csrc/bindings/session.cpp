#include "bindings/session.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/container_type.h"
#include "base/status.h"
#include "bindings/autograd_node.h"
#include "compile/training_graph.h"
#include "kernels/aten_bridge.h"
#include "kernels/sequence_value.h"
#include "onnx/export.h"
#include "ops/custom/query.h"
#include "products/matmul_provider.h"
#include "records/registry.h"
#include "transforms/lower_portable.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

CompileOptions read_options(const std::string& mode, const std::vector<std::string>& trainable, const py::dict& options,
                            Session::Mutations& mutations) {
  CompileOptions out;
  ORTMODULE_CHECK_ARG(mode == "training" || mode == "inference", "mode should be 'training' or 'inference', got '",
                      mode, "'");
  out.training = mode == "training";
  out.trainable = trainable;
  for (const auto& [key, value] : options) {
    const auto name = key.cast<std::string>();
    if (name == "device")
      out.device = c10::Device(value.cast<std::string>());
    else if (name == "dropout")
      out.dropout = value.cast<std::string>();
    else if (name == "matmul")
      out.matmul = value.cast<std::string>();
    else if (name == "memory_budget")
      out.memory_budget = value.is_none() ? std::nullopt : std::optional<double>(value.cast<double>());
    else if (name == "fusion")
      out.fusion = value.cast<bool>();
    else if (name == "weights")
      out.weights = value.cast<std::vector<std::string>>();
    else if (name == "sizes")
      out.sizes = value.cast<SymbolTable>();
    else if (name == "mutations")
      mutations = value.cast<Session::Mutations>();
    else if (name == "keep_stages")
      out.keep_stages = value.cast<bool>();
    else if (name == "verify")
      out.verify = value.cast<bool>();
    else
      fail(ErrorCode::kInvalidArgument, "unknown session option '", name, "'");
  }
  return out;
}

// One value of a run from Python: a tensor, a list of tensors, or None for an absent optional.
at::Tensor read_value(const py::handle& item, DType type) {
  if (THPVariable_Check(item.ptr())) return THPVariable_Unpack(item.ptr());
  if (item.is_none()) return {};
  ORTMODULE_CHECK_ARG(py::isinstance<py::list>(item) || py::isinstance<py::tuple>(item),
                      "an input should be a tensor, a list of tensors or None, got ",
                      std::string(py::str(py::type::handle_of(item))));
  std::vector<at::Tensor> elements;
  for (const py::handle element : py::reinterpret_borrow<py::sequence>(item)) {
    ORTMODULE_CHECK_ARG(THPVariable_Check(element.ptr()), "a sequence should hold tensors, got ",
                        std::string(py::str(py::type::handle_of(element))));
    elements.push_back(THPVariable_Unpack(element.ptr()));
  }
  const DType element = element_of(type);
  return make_sequence(std::move(elements), element == DType::kUndefined ? at::kFloat : to_scalar_type(element));
}

py::object write_value(const at::Tensor& value) {
  if (!value.defined()) return py::none();
  if (!holds_sequence(value)) return py::cast(value);
  py::list out;
  for (const at::Tensor& element : sequence_elements(value)) out.append(py::cast(element));
  return out;
}

py::list write_values(const std::vector<at::Tensor>& values) {
  py::list out;
  for (const at::Tensor& value : values) out.append(write_value(value));
  return out;
}

// A Python object that is let go of with the GIL, whoever does it.
std::shared_ptr<py::object> shared(const py::object& object) {
  return {new py::object(object), [](py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

py::list run_values(const Session& session, const py::sequence& inputs) {
  const std::vector<DType>& types = session.input_types();
  std::vector<at::Tensor> values;
  values.reserve(py::len(inputs));
  for (const py::handle item : inputs)
    values.push_back(read_value(item, values.size() < types.size() ? types[values.size()] : DType::kUndefined));
  return write_values(session.run(std::move(values)));
}

}  // namespace

Session::Session(const py::bytes& model, const std::string& mode, const std::vector<std::string>& trainable,
                 const py::dict& options) {
  const auto text = static_cast<std::string_view>(model);
  const CompileOptions read = read_options(mode, trainable, options, mutations_);
  const py::gil_scoped_release release;
  compiled_ = compile(text.data(), text.size(), read);
  for (const NodeArg* in : compiled_.graph->inputs()) input_types_.push_back(in->type().dtype);
  std::vector<size_t> overwritten;
  for (const auto& [output, input] : mutations_) {
    ORTMODULE_CHECK_ARG(output < compiled_.output_names.size() && input < compiled_.input_names.size(), "mutation (",
                        output, ", ", input, ") is out of range");
    first_mutation_ = std::min(first_mutation_, output);
    overwritten.push_back(input);
    const Node* producer = compiled_.graph->outputs()[output]->producer();
    if (producer && producer->record()->has(kStatistics)) uncounted_.insert(output);
  }
  if (overwritten.empty()) return;
  compiled_.agent->set_overwritten(overwritten);
  compiled_.agent->set_results(first_mutation_);
}

std::vector<at::Tensor> Session::run(std::vector<at::Tensor>&& inputs, const std::vector<char>* checked) const {
  const py::gil_scoped_release release;
  std::vector<at::Tensor> overwritten;
  for (const auto& [output, input] : mutations_) overwritten.push_back(inputs[input]);
  std::vector<at::Tensor> outputs =
      run_with_history(compiled_.agent, edges_, higher_, hook_order_, results_, std::move(inputs), checked);
  if (!mutations_.empty()) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < mutations_.size(); ++i) {
      const size_t output = mutations_[i].first;
      const at::Tensor &value = outputs[output], &target = overwritten[i];
      std::optional<at::AutoDispatchBelowADInplaceOrView> unseen;
      if (uncounted_.count(output)) unseen.emplace();
      // An observer gives its buffers as many elements as it finds channels.
      if (value.numel() > target.numel()) target.resize_(value.sizes());
      target.copy_(value);
    }
    outputs.resize(first_mutation_);
  }
  return outputs;
}

// Note [Observed runs]
// callback(phase, node, operator, inputs, outputs), the latter two lists of (name, value). It is called after the step:
// an input may have been overwritten or given up (None) by then, and outputs may be overwritten later, so that the
// callback copies what it wants to keep. Graph inputs and constants are as they were.
void Session::observe(const py::object& callback) const {
  if (callback.is_none()) {
    compiled_.agent->observe(nullptr);
    return;
  }
  const std::shared_ptr<py::object> held = shared(callback);
  const auto observer = [held](const Step& step, const Frame& frame) {
    const py::gil_scoped_acquire gil;
    py::list inputs, outputs;
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (step.inputs[i] >= 0)
        inputs.append(py::make_tuple(step.node->input(i)->name(), write_value(frame.slots[step.inputs[i]])));
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      const at::Tensor& value = frame.slots[step.outputs[i]];
      outputs.append(py::make_tuple(step.node->output(i)->name(), write_value(value)));
    }
    const char* phase = step.node->phase() == Phase::kForward ? "forward" : "backward";
    (*held)(phase, step.node->name(), step.node->qualified_op(), inputs, outputs);
  };
  compiled_.agent->observe(std::make_shared<const StepObserver>(observer));
}

void Session::differentiate_again(std::vector<size_t> given, const py::object& repeat) {
  HigherOrder higher;
  for (size_t i : given) {
    ORTMODULE_CHECK_ARG(i < compiled_.input_names.size(), "the graph has no input ", i);
    higher.written.push_back(
        std::any_of(mutations_.begin(), mutations_.end(), [i](const auto& mutation) { return mutation.second == i; }));
  }
  higher.given = std::move(given);
  std::vector<std::string> names;
  for (size_t i : compiled_.agent->program().y_outputs) names.push_back(compiled_.output_names[i]);
  const size_t wanted = compiled_.agent->program().x_inputs.size();
  higher.repeat = [held = shared(repeat), names = std::move(names), wanted](
                      const std::vector<at::Tensor>& given, const at::Tensor& random_state, bool looked) {
    const py::gil_scoped_acquire gil;
    const auto call = shared((*held)(write_values(given), write_value(random_state), looked));
    return [call, names, wanted](const std::vector<at::Tensor>& dys, const std::vector<char>& whole,
                                 std::optional<size_t> of, const std::vector<at::Tensor>* dxs) {
      const py::gil_scoped_acquire gil;
      py::dict named;
      py::list last;
      for (size_t i = 0; i < names.size(); ++i) {
        if (!dys[i].defined()) continue;
        named[py::str(names[i])] = write_value(dys[i]);
        if (!whole.empty() && whole[i]) last.append(names[i]);
      }
      std::vector<at::Tensor> out;
      const py::object name = of ? py::object(py::str(names[*of])) : py::none();
      const py::object engine = dxs ? py::object(write_values(*dxs)) : py::none();
      for (const py::handle item : py::list((*call)(named, last, name, engine)))
        out.push_back(read_value(item, DType::kUndefined));
      const size_t count = of ? 1 : wanted;
      ORTMODULE_CHECK(out.size() == count, kInternal, "there are ", count, " gradients, not ", out.size());
      return out;
    };
  };
  compiled_.graph->for_each([&](Node& node) {
    higher.draws = higher.draws || (node.record() && node.record()->has(kRandom) && !node.find_attribute("seed"));
  });
  higher_ = std::make_shared<const HigherOrder>(std::move(higher));
}

std::vector<std::string> Session::written_with_history() const {
  const std::vector<size_t>& reached = compiled_.agent->program().y_outputs;
  std::vector<std::string> names;
  for (const auto& [output, input] : mutations_)
    if (!uncounted_.count(output) && std::find(reached.begin(), reached.end(), output) != reached.end())
      names.push_back(compiled_.input_names[input]);
  return names;
}

void Session::order_hooks(std::vector<size_t> order) {
  std::vector<size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i)
    ORTMODULE_CHECK_ARG(sorted[i] == i && sorted.size() == compiled_.agent->program().x_inputs.size(),
                        "the order of hooks should name each of the ", compiled_.agent->program().x_inputs.size(),
                        " trainable inputs once");
  hook_order_ = std::make_shared<const std::vector<size_t>>(std::move(order));
}

void Session::order_results(const std::vector<std::pair<size_t, size_t>>& pairs, const std::vector<size_t>& sequence) {
  const std::vector<size_t>& ys = compiled_.agent->program().y_outputs;
  const auto place_of = [&](size_t output) { return std::find(ys.begin(), ys.end(), output) - ys.begin(); };
  const auto named = [&](size_t k) { return std::find(sequence.begin(), sequence.end(), ys[k]) - sequence.begin(); };
  std::vector<size_t> seen;  // what is written back is no result
  for (size_t k = 0; k < ys.size(); ++k)
    if (ys[k] < first_mutation_) seen.push_back(k);
  if (seen.size() < 2) return;
  const auto unnamed = std::stable_partition(
      seen.begin(), seen.end(), [&](size_t k) { return static_cast<size_t>(named(k)) == sequence.size(); });
  std::stable_sort(unnamed, seen.end(), [&](size_t a, size_t b) { return named(a) < named(b); });
  std::vector<std::pair<size_t, size_t>> found;
  for (const auto& [result, inner] : pairs) {
    const size_t a = place_of(result), b = place_of(inner);
    if (a < ys.size() && b < ys.size()) found.emplace_back(a, b);
  }
  results_ = std::make_shared<const ResultOrder>(ResultOrder::of(found, std::move(seen), ys.size()));
}

py::dict Session::statistics() const {
  py::dict aten;
  size_t gradient_outputs = 0;
  compiled_.graph->for_each([&](Node& node) {
    if (node.domain() != kAtenDomain || node.phase() != Phase::kForward) return;
    const py::str name(node.get_string("operator", node.op()));
    aten[name] = (aten.contains(name) ? aten[name].cast<int>() : 0) + 1;
  });
  const TrainingProgram& program = compiled_.agent->program();
  for (bool reachable : program.x_reachable) gradient_outputs += reachable;
  const std::vector<size_t>& segments = compiled_.agent->segments();
  py::dict seconds;
  for (const Stage& stage : compiled_.stages) seconds[py::str(stage.name)] = stage.seconds;
  py::dict out;
  out["forward_nodes"] = compiled_.forward_nodes;
  out["backward_nodes"] = compiled_.backward_nodes;
  out["aten_nodes"] = aten;
  out["gradients"] = gradient_outputs;
  out["gradient_segments"] = segments.empty() ? 0 : *std::max_element(segments.begin(), segments.end()) + 1;
  out["seconds"] = seconds;
  out["recomputed_nodes"] = compiled_.recomputed.nodes;
  out["fused_kernels"] = compiled_.fused.kernels;
  out["fused_nodes"] = compiled_.fused.nodes;
  out["peak_forward_bytes"] = compiled_.agent->peak_forward_bytes();
  out["peak_backward_bytes"] = compiled_.agent->peak_backward_bytes();
  out["saved_bytes"] = compiled_.agent->saved_bytes();
  const StepMemory* memory = compiled_.agent->memory();
  out["arena_bytes"] = memory ? memory->arena_bytes() : 0;
  out["unplanned_allocations"] = memory ? memory->unplanned() : 0;
  return out;
}

py::list Session::memory_at_peak() const {
  const TrainingProgram& program = compiled_.agent->program();
  struct Maker {
    const NodeArg* value;
    const Node* node;
  };
  std::unordered_map<int, Maker> makers;
  const auto note = [&](const ExecutionPlan& plan) {
    for (const LogicStream& stream : plan.streams)
      for (const Step& step : stream.steps)
        for (size_t i = 0; i < step.outputs.size(); ++i)
          if (step.outputs[i] >= 0) makers.try_emplace(step.outputs[i], Maker{step.node->output(i), step.node});
  };
  note(program.forward->plan());
  if (program.full_backward) note(program.full_backward->executor->plan());
  // What a value is for; a saved output is both, and it is the saving that costs.
  const ExecutionPlan* backward = program.full_backward ? &program.full_backward->executor->plan() : nullptr;
  using Slots = std::unordered_set<int>;
  const auto set_of = [](const std::vector<int>& slots) { return Slots(slots.begin(), slots.end()); };
  const std::array<std::pair<const char*, Slots>, 3> kinds{{
      {"saved", set_of(program.saved_slots)},
      {"gradient", backward ? set_of(backward->output_slots) : Slots()},
      {"output", set_of(program.forward->plan().output_slots)},
  }};
  py::list out;
  const auto add = [&](const char* half, const std::vector<HeldBytes>& all) {
    for (const HeldBytes& held : all) {
      int slot = held.slots.front();
      const char* kind = makers.count(slot) ? "temporary" : "given";
      for (auto named = kinds.rbegin(); named != kinds.rend(); ++named)
        for (int holder : held.slots)
          if (named->second.count(holder)) {
            slot = holder;
            kind = named->first;
          }
      const auto maker = makers.find(slot);
      const Node* node = maker == makers.end() ? nullptr : maker->second.node;
      out.append(py::make_tuple(half, node ? maker->second.value->name() : "", node ? node->op() : "",
                                node ? node->name() : "", held.bytes, kind));
    }
  };
  add("forward", compiled_.agent->forward_held());
  add("backward", compiled_.agent->backward_held());
  return out;
}

py::bytes Session::stage_model(const std::string& name, bool portable) const {
  for (const Stage& stage : compiled_.stages) {
    if (stage.name != name) continue;
    ORTMODULE_CHECK_ARG(stage.graph, "the graph of stage '", name,
                        "' was not kept; create the session with keep_stages");
    ExportOptions options;
    options.portable = portable;
    if (!portable) return py::bytes(export_model(*stage.graph, options));
    return py::bytes(export_model(*lower_portable(*stage.graph), options));
  }
  fail(ErrorCode::kInvalidArgument, "there is no stage '", name, "'");
}

std::string Session::plan_text() const {
  const TrainingProgram& program = compiled_.agent->program();
  std::string text = program.forward->plan().text();
  if (program.full_backward) text += program.full_backward->executor->plan().text();
  return text;
}

py::list Session::take_times() const {
  py::list out;
  for (const StepTime& time : compiled_.agent->take_times()) {
    const Node& node = *time.step->node;
    const bool fallback = node.domain() == kAtenDomain;
    out.append(py::make_tuple(node.phase() == Phase::kForward ? "forward" : "backward",
                              fallback ? node.get_string("operator", node.op()) : node.op(), node.name(), time.calls,
                              time.seconds));
  }
  return out;
}

void register_session(py::module_& m) {
  py::class_<EarlyAccumulators>(
      m, "EarlyAccumulators",
      "Autograd's nodes for these leaves, made before a capture leaves the heap in pieces, and "
      "kept until it goes.")
      .def(py::init<const std::vector<at::Tensor>&>(), py::arg("leaves"));
  py::class_<Session, std::shared_ptr<Session>>(m, "Session",
                                                "A model compiled for one set of trainable inputs and one mode.")
      .def(py::init<const py::bytes&, const std::string&, const std::vector<std::string>&, const py::dict&>(),
           py::arg("model"), py::arg("mode") = "inference", py::arg("trainable") = std::vector<std::string>{},
           py::arg("options") = py::dict())
      .def("run", &run_values, py::arg("inputs"),
           "Outputs for one value per graph input (a tensor, a list of tensors for a sequence, None for an absent "
           "optional); tensors carry history when gradients are enabled.")
      .def_property_readonly("input_names", [](const Session& s) { return s.compiled().input_names; })
      .def_property_readonly("output_names", [](const Session& s) { return s.compiled().output_names; })
      .def_property_readonly("written_with_history", &Session::written_with_history,
                             "Names of the graph inputs that are overwritten with something that a gradient reaches.")
      .def("observe", &Session::observe, py::arg("callback"),
           "callback(phase, node, operator, inputs, outputs) after every step of every later run; None: no more.")
      .def("release_edges", &Session::release_edges, py::call_guard<py::gil_scoped_release>(),
           "Lets go of what is kept of autograd between steps; the next steps keep it anew.")
      .def("differentiate_again", &Session::differentiate_again, py::arg("given"), py::arg("repeat"),
           "repeat(given, random_state, looked) runs a call again from the tensors of the graph inputs `given` (None "
           "where one is gone) and what torch's generator was before (None: nothing was drawn); `looked`: not for "
           "create_graph=True, but for a result that another is computed from. It returns gradients(dys, whole, of, "
           "dxs): the gradients of the trainable inputs, or of the output `of` alone, from the outputs' gradients by "
           "name, those of the outputs `whole` being all that flows on from there; `dxs`: the engine's own or None.")
      .def("order_hooks", &Session::order_hooks, py::arg("order"),
           "The trainable inputs, by their places among them, in the order in which hooks hear of their gradients.")
      .def("order_results", &Session::order_results, py::arg("pairs"), py::arg("sequence"),
           "(output, one that it is computed from), by their places among the outputs, and the outputs in the order in "
           "which autograd would make their nodes.")
      .def("statistics", &Session::statistics)
      .def("stage_names",
           [](const Session& s) {
             std::vector<std::string> names;
             for (const Stage& stage : s.compiled().stages) names.push_back(stage.name);
             return names;
           })
      .def("stage_model", &Session::stage_model, py::arg("stage"), py::arg("portable") = false)
      .def("plan_text", &Session::plan_text)
      .def("memory_at_peak", &Session::memory_at_peak)
      .def("take_times", &Session::take_times);

  m.def("matmul_choices", &matmul_choices);
  m.def("release_memory", &release_step_memory, py::call_guard<py::gil_scoped_release>());
  m.def(
      "training_graph",
      [](const py::bytes& model, std::vector<std::string> xs, std::vector<std::string> losses,
         std::vector<std::string> outputs) {
        const auto text = static_cast<std::string_view>(model);
        std::string bytes;
        {
          const py::gil_scoped_release release;
          bytes = training_graph(text.data(), text.size(), {std::move(xs), std::move(losses), std::move(outputs)});
        }
        return py::bytes(bytes);
      },
      py::arg("model"), py::arg("xs"), py::arg("losses") = std::vector<std::string>{},
      py::arg("outputs") = std::vector<std::string>{},
      "The model with its gradients in standard ONNX operators, serialized.");
  m.def("register_custom_ops_library", &load_custom_ops, py::arg("path"), py::call_guard<py::gil_scoped_release>(),
        "Loads a shared library of custom operators; their names.");
  m.def("profile", &Executor::profile, py::arg("on"));
  m.def("operators", [] {
    py::list out;
    for (const OpRecord* record : Registry::instance().all()) {
      if (record->has(kCustom)) continue;
      py::dict row;
      row["domain"] = record->domain();
      row["name"] = record->name();
      row["since"] = record->since();
      row["differentiable"] = record->differentiable();
      py::list inputs, optional, with_gradient, attributes;
      for (const FormalInput& f : record->inputs()) {
        inputs.append(f.name);
        if (f.presence == Presence::kOptional) optional.append(f.name);
        if (f.gradient == FormalInput::Gradient::kDifferentiable) with_gradient.append(f.name);
      }
      for (const FormalAttribute& f : record->attributes()) attributes.append(f.name);
      row["inputs"] = inputs;
      row["optional_inputs"] = optional;
      row["inputs_with_gradient"] = with_gradient;
      row["attributes"] = attributes;
      row["file"] = record->file();
      out.append(row);
    }
    return out;
  });
}

}  // namespace ortmodule

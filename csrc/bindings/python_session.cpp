#include "bindings/python_session.h"

#include <optional>

#include "base/registration.h"
#include "base/status.h"
#include "bindings/held_object.h"
#include "bindings/observing.h"
#include "bindings/session_history.h"
#include "bindings/session_settings.h"
#include "bindings/values.h"
#include "compile/derivative_graph.h"
#include "compile/training_graph.h"
#include "ops/custom/query.h"
#include "products/matmul_provider.h"
#include "records/registry.h"
#include "session/report.h"
#include "session/session.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace ortmodule {
namespace {

std::shared_ptr<Session> make_session(const py::bytes& model, const std::string& mode,
                                      const std::vector<std::string>& trainable, const py::dict& options) {
  SessionSettings read = read_options(mode, trainable, options);
  const auto text = static_cast<std::string_view>(model);
  const py::gil_scoped_release release;
  return std::make_shared<Session>(text, std::move(read));
}

py::list run_values(const Session& session, const py::sequence& inputs) {
  const std::vector<DType>& types = session.input_types();
  std::vector<at::Tensor> values;
  values.reserve(py::len(inputs));
  for (const py::handle item : inputs)
    values.push_back(read_value(item, values.size() < types.size() ? types[values.size()] : DType::kUndefined));
  {
    const py::gil_scoped_release release;
    values = session.run(std::move(values));
  }
  return write_values(values);
}

// repeat(given, changed, random_state, looked) as in HigherOrder, `changed` None where `given` is not all of the
// graph's inputs: it returns gradients(dys, whole, of, wanted, dxs), with None for an undefined tensor and outputs by
// name.
void differentiate_again(Session& session, std::vector<size_t> given, const py::object& repeat, bool expected) {
  HigherOrder::Repeat call_again = [held = held_object(repeat), names = session.differentiable_outputs(),
                                    wanted = session.gradient_count()](const HigherOrder::Given& given, bool looked) {
    const py::gil_scoped_acquire gil;
    const py::object changed = given.whole ? py::cast(given.changed) : py::none();
    const auto call =
        held_object((*held)(write_values(given.tensors), changed, write_value(given.random_state), looked));
    return [call, names, wanted](const HigherOrder::Asked& asked, const HigherOrder::Dxs* dxs) {
      const py::gil_scoped_acquire gil;
      py::dict named;
      py::list last;
      for (size_t i = 0; i < names.size(); ++i) {
        if (!asked.dys[i].defined()) continue;
        named[py::str(names[i])] = write_value(asked.dys[i]);
        if (!asked.whole.empty() && asked.whole[i]) last.append(names[i]);
      }
      py::list places;
      for (size_t i = 0; i < wanted; ++i)
        if (asked.wanted.empty() || asked.wanted[i]) places.append(i);
      const auto engine_gradients = [dxs] {
        std::vector<at::Tensor> found;
        {
          const py::gil_scoped_release release;
          found = (*dxs)();
        }
        return write_values(found);
      };
      const py::object engine = dxs ? py::object(py::cpp_function(engine_gradients)) : py::none();
      const auto& of = asked.of;
      const py::object found = of ? (*call)(named, last, py::str(names[*of]), places, engine)
                                  : (*call)(named, last, py::none(), places, engine);
      std::vector<at::Tensor> out;
      for (const py::handle item : py::list(found)) out.push_back(read_value(item, DType::kUndefined));
      const size_t count = of ? 1 : wanted;
      ORTMODULE_CHECK(out.size() == count, kInternal, "there are ", count, " gradients, not ", out.size());
      return out;
    };
  };
  session.differentiate_again(std::move(given), std::move(call_again), expected);
}

py::dict statistics(const Session& session) {
  const SessionStatistics found = statistics_of(session);
  py::dict aten, seconds, out;
  for (const auto& [op, count] : found.aten_nodes) aten[py::str(op)] = count;
  for (const auto& [stage, took] : found.seconds) seconds[py::str(stage)] = took;
  out["forward_nodes"] = found.forward_nodes;
  out["backward_nodes"] = found.backward_nodes;
  out["aten_nodes"] = aten;
  out["gradients"] = found.gradients;
  out["gradient_segments"] = found.gradient_segments;
  out["seconds"] = seconds;
  py::list passes;
  for (const auto& [stage, pass] : found.passes)
    passes.append(py::make_tuple(stage, pass.name, pass.runs, pass.modifications, pass.seconds));
  out["passes"] = passes;
  out["recomputed_nodes"] = found.recomputed_nodes;
  out["fused_kernels"] = found.fused_kernels;
  out["fused_nodes"] = found.fused_nodes;
  out["peak_forward_bytes"] = found.peak_forward_bytes;
  out["peak_backward_bytes"] = found.peak_backward_bytes;
  out["saved_bytes"] = found.saved_bytes;
  out["arena_bytes"] = found.arena_bytes;
  out["unplanned_allocations"] = found.unplanned_allocations;
  out["sizes"] = found.sizes;
  return out;
}

py::object late_counts(const Session& session) {
  if (!session.late()) return py::none();
  const LateCounts& counts = session.late()->counts;
  return py::dict("calls"_a = counts.calls.load(), "read"_a = counts.read.load(),
                  "at_backward"_a = counts.at_backward.load(), "at_write"_a = counts.at_write.load(),
                  "never_read"_a = counts.never_read.load(), "lost"_a = counts.lost.load(),
                  "on"_a = session.late()->is_on());
}

// Whoever holds Python's lock lets go of it, since what is computed may need it on another thread.
void run_without_python(const std::function<void()>& work) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return work();
  const py::gil_scoped_release release;
  work();
}

py::object number_or_none(double number) {
  return number < 0 ? py::object(py::none()) : py::object(py::int_(static_cast<int64_t>(number)));
}

py::list values_of(const std::vector<PlannedValue>& values) {
  py::list out;
  for (const PlannedValue& v : values)
    out.append(py::dict("name"_a = v.name, "type"_a = v.type, "slot"_a = v.slot, "bytes"_a = number_or_none(v.bytes)));
  return out;
}

py::list waits_of(const std::vector<std::pair<int, bool>>& waits) {
  py::list out;
  for (const auto& [notification, by_host] : waits)
    out.append(py::dict("kind"_a = by_host ? "Barrier" : "WaitOnEP", "notification"_a = notification));
  return out;
}

// What `json.dumps` takes.
py::list plans(const Session& session, const SymbolTable& sizes) {
  py::list out;
  for (const PlannedHalf& half : plans_of(session, sizes)) {
    py::list steps;
    for (const PlannedStep& step : half.steps)
      steps.append(py::dict("kind"_a = step.kind, "stream"_a = step.stream, "waits_for"_a = waits_of(step.waits_for),
                            "notifies"_a = number_or_none(step.notifies), "provider"_a = step.provider,
                            "op"_a = step.op, "node"_a = step.node, "inputs"_a = values_of(step.inputs),
                            "outputs"_a = values_of(step.outputs), "release"_a = step.release,
                            "bytes"_a = number_or_none(step.cost.bytes), "flops"_a = number_or_none(step.cost.flops),
                            "seconds"_a = step.seconds < 0 ? py::object(py::none()) : py::float_(step.seconds)));
    out.append(py::dict("name"_a = half.name, "streams"_a = half.streams, "steps"_a = steps,
                        "waits_at_end"_a = waits_of(half.waits_at_end)));
  }
  return out;
}

py::dict forecast(const Session& session, const SymbolTable& sizes) {
  const MemoryForecast found = forecast_of(session, sizes);
  py::list blocks;
  for (const ForecastBlock& b : found.blocks)
    blocks.append(py::dict("half"_a = b.half, "value"_a = b.name, "op"_a = b.node->qualified_op(),
                           "node"_a = b.node->name(), "bytes"_a = b.bytes, "first"_a = b.first, "end"_a = b.end,
                           "offset"_a = b.offset, "saved"_a = b.saved));
  return py::dict("peak_forward_bytes"_a = found.peak_forward, "saved_bytes"_a = found.saved,
                  "peak_backward_bytes"_a = found.peak_backward, "arena_bytes"_a = found.arena_bytes,
                  "complete"_a = found.complete, "blocks"_a = blocks);
}

}  // namespace

void register_session(py::module_& m) {
  set_late_runner(&run_without_python);
  m.def(
      "settle_all_late", [] { settle_all_late(); }, py::call_guard<py::gil_scoped_release>(),
      "Computes the late outputs of all calls that are alive.");
  py::class_<EarlyAccumulators>(
      m, "EarlyAccumulators",
      "Autograd's nodes for these leaves, made before a capture leaves the heap in pieces, and "
      "kept until it goes.")
      .def(py::init<const std::vector<at::Tensor>&>(), py::arg("leaves"));
  py::class_<Session, std::shared_ptr<Session>> session(
      m, "Session", "A model compiled for one set of trainable inputs and one mode.");
  register_observing(m, session);
  session
      .def(py::init(&make_session), py::arg("model"), py::arg("mode") = "inference",
           py::arg("trainable") = std::vector<std::string>{}, py::arg("options") = py::dict())
      .def("run", &run_values, py::arg("inputs"),
           "Outputs for one value per graph input (a tensor, a list of tensors for a sequence, None for an absent "
           "optional); tensors carry history when gradients are enabled.")
      .def_property_readonly("input_names", [](const Session& s) { return s.compiled().input_names; })
      .def_property_readonly("output_names", [](const Session& s) { return s.compiled().output_names; })
      .def_property_readonly("written_with_history", &Session::written_with_history,
                             "Names of the graph inputs that are overwritten with something that a gradient reaches.")
      .def("release_edges", &Session::release_edges, py::call_guard<py::gil_scoped_release>(),
           "Lets go of what is kept of autograd between steps; the next steps keep it anew.")
      .def("differentiate_again", &differentiate_again, py::arg("given"), py::arg("repeat"),
           py::arg("expected") = false,
           "repeat(given, changed, random_state, looked) differentiates a call again, from the tensors of the graph "
           "inputs `given` (None where one is gone) and what torch's generator was before (None: nothing was drawn). "
           "Once one was differentiated again, or where that is `expected`, it is told all of the graph's inputs, and "
           "the places of those that were written since; else `changed` is None. `looked`: not for create_graph=True, "
           "but for a result that another is computed from. It returns gradients(dys, whole, of, wanted, dxs): the "
           "gradients of the trainable inputs, of which those at the places `wanted` are needed, or of the output `of` "
           "alone, from the outputs' gradients by name, those of the outputs `whole` being all that flows on from "
           "there; `dxs()`: the engine's own; None: it has none.")
      .def("order_hooks", &Session::order_hooks, py::arg("order"),
           "The trainable inputs, by their places among them, in the order in which hooks hear of their gradients.")
      .def("order_results", &Session::order_results, py::arg("pairs"), py::arg("sequence"),
           "(output, one that it is computed from), by their places among the outputs, and the outputs in the order in "
           "which autograd would make their nodes.")
      .def("compute_late", &Session::compute_late, py::arg("quick"),
           "From now on calls with gradients run `quick`, a session of the same module with some of the outputs, and "
           "compute the others when somebody looks at them. Why it may not be; empty: it may.")
      .def("output_bytes", &Session::output_bytes, py::arg("sizes"),
           "Of each output, where the sizes of the graph's symbols tell; -1 where they do not.")
      .def("late_counts", &late_counts, "What became of the calls with such outputs; None where there are none.")
      .def("statistics", &statistics)
      .def("stage_names",
           [](const Session& s) {
             std::vector<std::string> names;
             for (const Stage& stage : s.compiled().stages) names.push_back(stage.name);
             return names;
           })
      .def(
          "stage_model",
          [](const Session& s, const std::string& stage, bool portable) {
            return py::bytes(stage_model(s, stage, portable));
          },
          py::arg("stage"), py::arg("portable") = false)
      .def("plan_text", &plan_text, py::arg("sizes") = SymbolTable())
      .def("placement",
           [](const Session& s) {
             const PlacementResult& placed = s.compiled().placed;
             return py::dict("nodes"_a = placed.nodes, "to_host"_a = placed.to_host, "to_device"_a = placed.to_device,
                             "fused"_a = placed.fused);
           })
      .def(
          "plans", &plans, py::arg("sizes") = SymbolTable(),
          "Both halves' steps, in the order in which they are issued, with bytes and operations where the sizes of the "
          "graph's symbols tell them.")
      .def("memory_forecast", &forecast, py::arg("sizes") = SymbolTable(),
           "What a step with these sizes will hold, before it runs.")
      .def(
          "sizes_of",
          [](const Session& s, const py::sequence& inputs) {
            std::vector<at::Tensor> values;
            for (const py::handle item : inputs) values.push_back(read_value(item, DType::kUndefined));
            return sizes_of(s, values);
          },
          py::arg("inputs"), "The graph's symbols in a run with such inputs; types and sizes alone are read.")
      .def("placed_memory", &placed_memory_as_dict,
           "Where the runs of the sizes that ran last have their large values; known from the second such run on.")
      .def("history", &history_as_dict,
           "What each pass and stage did to the graph, node by node; a session has it that was made with "
           "keep_history.")
      .def("memory_at_peak",
           [](const Session& s) {
             py::list out;
             for (const PeakValue& v : memory_at_peak(s))
               out.append(py::make_tuple(v.half, v.name, v.op, v.node, v.bytes, v.kind));
             return out;
           })
      .def("take_times", [](const Session& s) {
        py::list out;
        for (const ProfiledStep& step : take_times(s))
          out.append(py::make_tuple(step.phase, step.op, step.node, step.calls, step.seconds,
                                    number_or_none(step.cost.bytes), number_or_none(step.cost.flops), step.value));
        return out;
      });

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
          bytes = training_graph(text, {std::move(xs), std::move(losses), std::move(outputs)});
        }
        return py::bytes(bytes);
      },
      py::arg("model"), py::arg("xs"), py::arg("losses") = std::vector<std::string>{},
      py::arg("outputs") = std::vector<std::string>{},
      "The model with its gradients in standard ONNX operators, serialized.");
  m.def(
      "derivative_graph",
      [](const py::bytes& model, std::vector<std::string> xs, std::vector<std::string> ys,
         std::vector<std::string> trainable) {
        const auto text = static_cast<std::string_view>(model);
        DerivativeGraph graph;
        {
          const py::gil_scoped_release release;
          graph = derivative_graph(text, {std::move(xs), std::move(ys), std::move(trainable)});
        }
        return py::make_tuple(py::bytes(graph.model), graph.dys, graph.dxs, graph.reads);
      },
      py::arg("model"), py::arg("xs"), py::arg("ys"), py::arg("trainable"),
      "The gradients of `xs` as a graph that has gradients again, serialized; the places of the ys that it has as "
      "further inputs, of the xs whose gradients are its outputs, and of the model's inputs that it reads.");
  m.def("register_custom_ops_library", &load_custom_ops, py::arg("path"), py::call_guard<py::gil_scoped_release>(),
        "Loads a shared library of custom operators; their names.");
  m.def("profile", &Executor::profile, py::arg("on"));
  m.def("take_registration_errors", &take_registration_errors);
  m.def("leave_out_wait", &RunStreams::leave_out, py::arg("plan"), py::arg("wait"));
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

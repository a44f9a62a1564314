#include "bindings/session_history.h"

#include <pybind11/stl.h>

#include "base/status.h"
#include "session/report.h"
#include "transforms/graph_history.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace ortmodule {
namespace {

py::dict version_as_dict(const NodeVersion& v) {
  return py::dict("node"_a = v.node, "op"_a = v.op, "name"_a = v.name, "provider"_a = v.provider,
                  "phase"_a = v.phase == Phase::kForward ? "forward" : "backward", "inputs"_a = v.inputs,
                  "outputs"_a = v.outputs, "attributes"_a = v.attributes, "metadata"_a = v.metadata);
}

py::dict event_as_dict(const GraphEvent& e) {
  return py::dict("stage"_a = e.stage, "pass"_a = e.pass, "round"_a = e.round, "seconds"_a = e.seconds,
                  "modifications"_a = e.modifications, "nodes"_a = e.nodes, "removed"_a = e.removed,
                  "replaced"_a = e.replaced, "added"_a = e.added, "order"_a = e.order, "outputs"_a = e.outputs);
}

template <typename T, typename F>
py::list list_of(const std::vector<T>& values, F&& one) {
  py::list out;
  for (const T& value : values) out.append(one(value));
  return out;
}

}  // namespace

py::dict history_as_dict(const Session& session) {
  const auto& history = session.compiled().history;
  ORTMODULE_CHECK_ARG(history, "the history of the graph was not kept; create the session with keep_history");
  const auto source = [](const GraphSource& s) {
    return py::dict("name"_a = s.name, "type"_a = s.type, "constant"_a = s.constant, "text"_a = s.text);
  };
  return py::dict("versions"_a = list_of(history->versions(), version_as_dict),
                  "events"_a = list_of(history->events(), event_as_dict),
                  "sources"_a = list_of(history->sources(), source));
}

py::dict placed_memory_as_dict(const Session& session) {
  const PlacedMemory placed = placed_memory(session);
  const auto block = [](const PlacedBlock& b) {
    return py::dict("bytes"_a = b.bytes, "first"_a = b.first, "end"_a = b.end, "arena"_a = b.arena,
                    "offset"_a = b.offset);
  };
  return py::dict("blocks"_a = list_of(placed.blocks, block), "forward_steps"_a = placed.forward_steps,
                  "steps"_a = placed.steps, "values"_a = placed.values, "passing_bytes"_a = placed.passing_bytes,
                  "lasting_bytes"_a = placed.lasting_bytes);
}

}  // namespace ortmodule

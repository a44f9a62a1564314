#include "bindings/passes/python_pass.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "bindings/held_object.h"
#include "bindings/passes/graph_handles.h"
#include "graph/verify.h"
#include "records/resolve.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

class PythonPass : public GraphTransformer {
 public:
  PythonPass(std::string name, std::shared_ptr<py::object> function)
      : name_(std::move(name)), function_(std::move(function)) {}

  const char* name() const override { return name_.c_str(); }

  size_t apply(Graph& graph, const TransformContext& context) override {
    const auto handles = std::make_shared<PassHandles>(PassHandles{&graph, name_, stage_name(context.stage)});
    call(handles);
    if (handles->edits == 0) return 0;
    // Whoever wrote it may have put a node before what it reads; the engine's own passes count on the order.
    verify_edges(graph);
    resolve(graph);
    return handles->edits;
  }

 private:
  void call(const std::shared_ptr<PassHandles>& handles) const {
    const py::gil_scoped_acquire gil;
    struct End {
      PassHandles& handles;
      ~End() { handles.graph = nullptr; }
    } end{*handles};
    try {
      (*function_)(graph_handle(handles));
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C
      fail(ErrorCode::kInvalidArgument, "the pass '", name_, "' raised ", error.what());
    }
  }

  std::string name_;
  std::shared_ptr<py::object> function_;
};

PassStages stages_of(const std::string& stage) {
  if (stage == "forward") return kForwardOnly;
  if (stage == "joint") return kJointOnly;
  ORTMODULE_CHECK_ARG(stage == "both", "a pass runs at the stage 'forward', 'joint' or 'both', not '", stage, "'");
  return kBothStages;
}

}  // namespace

std::vector<PassInfo> python_passes(const py::list& passes) {
  std::vector<PassInfo> out;
  for (const py::handle item : passes) {
    const auto [name, stage, function] = item.cast<std::tuple<std::string, std::string, py::object>>();
    const auto make = [name = name, held = held_object(function)]() -> std::unique_ptr<GraphTransformer> {
      return std::make_unique<PythonPass>(name, held);
    };
    out.push_back({name, PassLevel::kRequired, stages_of(stage), pass_place::kUser, make});
  }
  return out;
}

void register_passes(py::module_& m) {
  register_graph_handles(m);
  m.def("pass_names", [] {
    std::vector<std::string> names;
    for (const PassInfo& info : PassRegistry::instance().passes()) names.push_back(info.name);
    return names;
  });
}

}  // namespace ortmodule

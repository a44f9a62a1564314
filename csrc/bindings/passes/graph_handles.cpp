#include "bindings/passes/graph_handles.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/status.h"
#include "bindings/attributes.h"
#include "kernels/aten_bridge.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace py = pybind11;

namespace ortmodule {

Graph& PassHandles::get() const {
  ORTMODULE_CHECK_ARG(graph, "a graph, node or value of the pass '", pass, "' was used after the pass returned");
  return *graph;
}

namespace {

using Handles = std::shared_ptr<PassHandles>;

struct ValueHandle {
  NodeArg* value;
  size_t id;
  Handles of;

  NodeArg* get() const {
    of->get();
    ORTMODULE_CHECK_ARG(!of->removed_values.count(id), "a value that the pass '", of->pass, "' removed was used");
    return value;
  }
  bool operator==(const ValueHandle& other) const { return of == other.of && id == other.id; }
};

struct NodeHandle {
  Node* node;
  size_t id;
  Handles of;

  Node* get() const {
    of->get();
    ORTMODULE_CHECK_ARG(!of->removed_nodes.count(id), "a node that the pass '", of->pass, "' removed was used");
    return node;
  }
  bool operator==(const NodeHandle& other) const { return of == other.of && id == other.id; }
};

struct GraphHandle {
  Handles of;
};

py::object wrap(NodeArg* value, const Handles& of) {
  return value ? py::cast(ValueHandle{value, value->id(), of}) : py::object(py::none());
}

py::object wrap(Node* node, const Handles& of) {
  return node ? py::cast(NodeHandle{node, node->id(), of}) : py::object(py::none());
}

template <typename T>
py::list wrap_all(const std::vector<T*>& items, const Handles& of) {
  py::list out;
  for (T* item : items) out.append(wrap(item, of));
  return out;
}

// A tensor, number or list as a constant; a number has the type of `like`, or is a double or an int64.
NodeArg* make_constant(Graph& graph, const py::handle& data, const NodeArg* like) {
  if (THPVariable_Check(data.ptr())) return graph.constant(tensor_data_from(THPVariable_Unpack(data.ptr())));
  const bool number = py::isinstance<py::int_>(data) || py::isinstance<py::float_>(data);
  if (number && like && like->type().dtype != DType::kUndefined)
    return graph.constant(TensorData::scalar(like->type().dtype, data.cast<double>()));
  if (py::isinstance<py::int_>(data)) return graph.constant(TensorData::scalar_int(data.cast<int64_t>()));
  if (py::isinstance<py::float_>(data)) return graph.constant(TensorData::scalar(DType::kDouble, data.cast<double>()));
  if (py::isinstance<py::list>(data) || py::isinstance<py::tuple>(data))
    return graph.constant(TensorData::of_ints(data.cast<std::vector<int64_t>>()));
  fail(ErrorCode::kInvalidArgument, "a constant should be a tensor, a number or a list of integers, got ",
       py::type::of(data).attr("__name__").cast<std::string>());
}

std::vector<NodeArg*> operands(const py::sequence& inputs, const Handles& of, const std::string& op) {
  const NodeArg* like = nullptr;
  for (const py::handle item : inputs)
    if (!like && py::isinstance<ValueHandle>(item)) like = item.cast<ValueHandle&>().get();
  std::vector<NodeArg*> values;
  for (const py::handle item : inputs) {
    if (item.is_none()) {
      values.push_back(nullptr);
    } else if (py::isinstance<ValueHandle>(item)) {
      const auto& value = item.cast<ValueHandle&>();
      ORTMODULE_CHECK_ARG(value.of == of, "an input of ", op, " is a value of another graph");
      values.push_back(value.get());
    } else {
      values.push_back(make_constant(of->get(), item, like));
    }
  }
  return values;
}

// Adds a node before `at`, as part of what `at` is part of: its phase, its notes of the user's code.
Node* add_node(const NodeHandle& at, const std::string& op, const py::sequence& inputs, const std::string& domain,
               size_t outputs, const py::kwargs& attributes) {
  Node* place = at.get();
  Graph& graph = place->graph();
  Node* node = graph.add_node(domain == "ai.onnx" ? "" : domain, op, operands(inputs, at.of, op),
                              std::vector<std::string>(outputs), attributes_from(attributes), place);
  node->set_phase(place->phase());
  node->metadata() = place->metadata();
  infer_node(*node);
  ++at.of->edits;
  return node;
}

py::object emit(const NodeHandle& at, const std::string& op, const py::sequence& inputs, const std::string& domain,
                size_t outputs, const py::kwargs& attributes) {
  const Node* node = add_node(at, op, inputs, domain, outputs, attributes);
  if (outputs == 1) return wrap(node->output(0), at.of);
  return py::tuple(wrap_all(node->outputs(), at.of));
}

void replace_value(NodeArg* from, NodeArg* to, const Handles& of) {
  ORTMODULE_CHECK_ARG(from->producer(), "'", from->name(), "' is an input or a constant of the graph, not a result");
  ORTMODULE_CHECK_ARG(may_replace(to->type(), from->type()), "'", to->name(), "' of type ", to->type().text(),
                      " cannot replace '", from->name(), "' of type ", from->type().text());
  if (from == to) return;
  of->get().replace_all_uses(from, to);
  ++of->edits;
}

void replace_by(const ValueHandle& old, const ValueHandle& now) {
  NodeArg *from = old.get(), *to = now.get();
  ORTMODULE_CHECK_ARG(old.of == now.of, "'", to->name(), "' is a value of another graph than '", from->name(), "'");
  replace_value(from, to, old.of);
}

bool is_used(const Node& node) {
  return std::any_of(node.outputs().begin(), node.outputs().end(),
                     [](const NodeArg* out) { return out && (!out->uses().empty() || out->is_graph_output()); });
}

// Removes a node whose outputs nobody reads, and what it alone needed.
void remove_unread(Node* node, const Handles& of) {
  std::vector<Node*> stack{node};
  while (!stack.empty()) {
    Node* next = stack.back();
    stack.pop_back();
    if (is_used(*next) || (next != node && next->record() && next->record()->has(kSideEffect))) continue;
    std::unordered_set<Node*> makers;
    for (const NodeArg* in : next->inputs())
      if (in && in->producer()) makers.insert(in->producer());
    of->removed_nodes.insert(next->id());
    for (const NodeArg* out : next->outputs())
      if (out) of->removed_values.insert(out->id());
    of->get().remove(next);
    for (Node* maker : makers)
      if (std::find(stack.begin(), stack.end(), maker) == stack.end()) stack.push_back(maker);
  }
  ++of->edits;
}

py::object replace_node(const NodeHandle& old, const std::string& op, const py::sequence& inputs,
                        const std::string& domain, const py::kwargs& attributes) {
  Node* node = old.get();
  Node* now = add_node(old, op, inputs, domain, node->outputs().size(), attributes);
  for (size_t i = 0; i < node->outputs().size(); ++i)
    if (node->output(i)) replace_value(node->output(i), now->output(i), old.of);
  remove_unread(node, old.of);
  return wrap(now, old.of);
}

void remove_node(const NodeHandle& handle) {
  Node* node = handle.get();
  ORTMODULE_CHECK_ARG(!is_used(*node), node->describe(), " cannot be removed: its results are read");
  remove_unread(node, handle.of);
}

std::vector<Node*> nodes_of(const Graph& graph, const std::optional<std::string>& op) {
  std::vector<Node*> found;
  for (Node* node : graph.nodes())
    if (!op || node->qualified_op() == *op || (node->domain().empty() && "ai.onnx::" + node->op() == *op))
      found.push_back(node);
  return found;
}

std::vector<Node*> readers(const NodeArg& value) {
  std::vector<Node*> out;
  for (const Use& use : value.uses()) out.push_back(use.node);
  return out;
}

py::object constant_of(const ValueHandle& v) {
  const TensorData* data = v.get()->constant();
  if (!data) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor_from(*data)));
}

void register_value(py::module_& m) {
  py::class_<ValueHandle>(m, "GraphNodeArg", "A value of a graph, in the hands of a pass.")
      .def_property_readonly("name", [](const ValueHandle& v) { return v.get()->name(); })
      .def_property_readonly("dtype", [](const ValueHandle& v) { return static_cast<int>(v.get()->type().dtype); })
      .def_property_readonly("shape", [](const ValueHandle& v) { return shape_to(v.get()->type()); })
      .def_property_readonly("producer", [](const ValueHandle& v) { return wrap(v.get()->producer(), v.of); })
      .def_property_readonly("readers", [](const ValueHandle& v) { return wrap_all(readers(*v.get()), v.of); })
      .def_property_readonly("constant", &constant_of)
      .def_property_readonly("is_graph_input", [](const ValueHandle& v) { return v.get()->is_graph_input(); })
      .def_property_readonly("is_graph_output", [](const ValueHandle& v) { return v.get()->is_graph_output(); })
      .def("replace", &replace_by, py::arg("value"))
      .def("__eq__", &ValueHandle::operator==, py::is_operator())
      .def("__hash__", [](const ValueHandle& v) { return v.id; })
      .def("__repr__",
           [](const ValueHandle& v) { return "<NodeArg " + v.get()->name() + ": " + v.get()->type().text() + ">"; });
}

void register_node(py::module_& m) {
  py::class_<NodeHandle>(m, "GraphNode", "A node of a graph, in the hands of a pass.")
      .def_property_readonly("op", [](const NodeHandle& n) { return n.get()->op(); })
      .def_property_readonly("domain", [](const NodeHandle& n) { return n.get()->domain(); })
      .def_property_readonly("name", [](const NodeHandle& n) { return n.get()->name(); })
      .def_property_readonly(
          "phase", [](const NodeHandle& n) { return n.get()->phase() == Phase::kForward ? "forward" : "backward"; })
      .def_property_readonly("inputs", [](const NodeHandle& n) { return wrap_all(n.get()->inputs(), n.of); })
      .def_property_readonly("outputs", [](const NodeHandle& n) { return wrap_all(n.get()->outputs(), n.of); })
      .def_property_readonly("attributes", [](const NodeHandle& n) { return attributes_to(n.get()->attributes()); })
      .def_property_readonly("metadata", [](const NodeHandle& n) { return py::cast(n.get()->metadata()); })
      .def("emit", &emit, py::arg("op"), py::arg("inputs"), py::arg("domain") = "", py::arg("outputs") = 1)
      .def("replace", &replace_node, py::arg("op"), py::arg("inputs"), py::arg("domain") = "")
      .def("remove", &remove_node)
      .def("__eq__", &NodeHandle::operator==, py::is_operator())
      .def("__hash__", [](const NodeHandle& n) { return n.id; })
      .def("__repr__", [](const NodeHandle& n) { return "<" + n.get()->describe() + ">"; });
}

}  // namespace

py::object graph_handle(const Handles& handles) { return py::cast(GraphHandle{handles}); }

void register_graph_handles(py::module_& m) {
  register_value(m);
  register_node(m);
  py::class_<GraphHandle>(m, "Graph", "A graph, in the hands of a pass.")
      .def_property_readonly("stage",
                             [](const GraphHandle& g) {
                               g.of->get();
                               return g.of->stage;
                             })
      .def_property_readonly("inputs", [](const GraphHandle& g) { return wrap_all(g.of->get().inputs(), g.of); })
      .def_property_readonly("outputs", [](const GraphHandle& g) { return wrap_all(g.of->get().outputs(), g.of); })
      .def(
          "nodes",
          [](const GraphHandle& g, const std::optional<std::string>& op) {
            return wrap_all(nodes_of(g.of->get(), op), g.of);
          },
          py::arg("op") = std::nullopt)
      .def(
          "constant",
          [](const GraphHandle& g, const py::object& data, const std::optional<ValueHandle>& like) {
            return wrap(make_constant(g.of->get(), data, like ? like->get() : nullptr), g.of);
          },
          py::arg("data"), py::arg("like") = std::nullopt)
      .def("__repr__",
           [](const GraphHandle& g) { return "<Graph of " + std::to_string(g.of->get().node_count()) + " nodes>"; });
}

}  // namespace ortmodule

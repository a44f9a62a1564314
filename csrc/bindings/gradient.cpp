#include "bindings/gradient.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bindings/attributes.h"
#include "kernels/aten_bridge.h"
#include "records/grad_context.h"
#include "records/registry.h"
#include "records/user_gradient.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// A value of the graph in a formula's hands; `alive` is cleared when the formula returns.
struct FormulaValue {
  NodeArg* arg;
  std::shared_ptr<const bool> alive;

  NodeArg* get() const {
    ORTMODULE_CHECK_ARG(*alive, "a value of a gradient formula was used after the formula returned");
    return arg;
  }
};

class Formula {
 public:
  explicit Formula(GradContext& context) : context_(context), alive_(std::make_shared<bool>(true)) {}
  void end() { *alive_ = false; }

  const Node& node() const { return context().node(); }
  GradContext& context() const {
    ORTMODULE_CHECK_ARG(*alive_, "the context of a gradient formula was used after the formula returned");
    return context_;
  }

  py::object I(size_t i) const { return wrap(context().I(checked(i, node().inputs().size(), "input"))); }
  py::object O(size_t i) const { return wrap(context().O(checked(i, node().record()->outputs().size(), "output"))); }
  py::object GO(size_t i) const { return wrap(context().GO(checked(i, node().record()->outputs().size(), "output"))); }
  bool needs(size_t i) const { return context().needs(i); }

  // Numbers among the inputs take the element type of the first value.
  py::object emit(const std::string& op, const py::sequence& inputs, const std::string& domain, size_t outputs,
                  const py::kwargs& attributes) const {
    const std::string name = (domain.empty() || domain == "ai.onnx" ? "" : domain + "::") + op;
    const NodeArg* like = nullptr;
    for (const py::handle item : inputs)
      if (!like && py::isinstance<FormulaValue>(item)) like = item.cast<FormulaValue&>().get();
    std::vector<NodeArg*> values;
    for (const py::handle item : inputs) values.push_back(operand(item, like, name));
    const std::vector<NodeArg*> results = context().emit_n(name, values, outputs, attributes_from(attributes));
    if (outputs == 1) return wrap(results[0]);
    py::tuple all(results.size());
    for (size_t i = 0; i < results.size(); ++i) all[i] = wrap(results[i]);
    return all;
  }

  py::object constant(const py::object& data, const std::optional<FormulaValue>& like) const {
    GradContext& c = context();
    if (like) return wrap(c.scalar(data.cast<double>(), like->get()));
    if (py::isinstance<py::int_>(data)) return wrap(c.scalar_int(data.cast<int64_t>()));
    if (THPVariable_Check(data.ptr()))
      return wrap(c.graph().constant(tensor_data_from(THPVariable_Unpack(data.ptr()))));
    return wrap(c.ints(data.cast<std::vector<int64_t>>()));
  }

  py::object wrap(NodeArg* value) const {
    return value ? py::cast(FormulaValue{value, alive_}) : py::object(py::none());
  }

  // What the formula returned becomes the gradients of the inputs.
  void take(const py::object& result) const {
    const std::string who = "the gradient registered for " + node().qualified_op();
    py::object results = result;
    if (py::isinstance<FormulaValue>(result) || result.is_none()) results = py::make_tuple(result);
    ORTMODULE_CHECK_ARG(py::isinstance<py::tuple>(results) || py::isinstance<py::list>(results), who, " returned ",
                        py::type::of(result).attr("__name__").cast<std::string>(),
                        "; it should return one value or None per input");
    const auto list = results.cast<std::vector<py::object>>();
    ORTMODULE_CHECK_ARG(list.size() <= node().inputs().size(), who, " returned ", list.size(), " values for ",
                        node().inputs().size(), " inputs");
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_none()) continue;
      ORTMODULE_CHECK_ARG(py::isinstance<FormulaValue>(list[i]), who, " returned ",
                          py::type::of(list[i]).attr("__name__").cast<std::string>(), " for input ", i);
      NodeArg* value = list[i].cast<FormulaValue&>().get();
      if (!context().needs(i)) continue;
      const TypeInfo &have = value->type(), &want = context().I(i)->type();
      ORTMODULE_CHECK_ARG(may_replace(have, want), who, " gives input ", i, " of type ", want.text(),
                          " a gradient of type ", have.text(), "; reduce_to undoes broadcasting");
      context().GI(i, value);
    }
  }

 private:
  NodeArg* operand(const py::handle& item, const NodeArg* like, const std::string& op) const {
    if (item.is_none()) return nullptr;
    if (py::isinstance<FormulaValue>(item)) return item.cast<FormulaValue&>().get();
    const bool number = py::isinstance<py::int_>(item) || py::isinstance<py::float_>(item);
    ORTMODULE_CHECK_ARG(number && like, "an input of ", op, " should be a value of the formula",
                        like ? ", a number or None" : " (a number needs a value beside it)", ", got ",
                        py::type::of(item).attr("__name__").cast<std::string>());
    return context().scalar(item.cast<double>(), like);
  }

  static size_t checked(size_t i, size_t count, const char* what) {
    ORTMODULE_CHECK_ARG(i < count, "the operator has no ", what, " ", i);
    return i;
  }

  GradContext& context_;
  std::shared_ptr<bool> alive_;
};

}  // namespace

void register_gradient_formulas(py::module_& m) {
  py::class_<FormulaValue>(m, "GradientValue", "A value of the graph, inside a gradient formula.")
      .def_property_readonly("name", [](const FormulaValue& v) { return v.get()->name(); })
      .def_property_readonly("dtype", [](const FormulaValue& v) { return static_cast<int>(v.get()->type().dtype); })
      .def_property_readonly("shape", [](const FormulaValue& v) { return shape_to(v.get()->type()); });
  py::class_<Formula, std::shared_ptr<Formula>>(m, "GradientContext",
                                                "What a gradient formula sees of the operator that it differentiates.")
      .def_property_readonly("domain", [](const Formula& f) { return f.node().domain(); })
      .def_property_readonly("op", [](const Formula& f) { return f.node().op(); })
      .def_property_readonly("attributes", [](const Formula& f) { return attributes_to(f.node().attributes()); })
      .def_property_readonly("input_count", [](const Formula& f) { return f.node().inputs().size(); })
      .def_property_readonly("output_count", [](const Formula& f) { return f.node().outputs().size(); })
      .def("I", &Formula::I, py::arg("i"))
      .def("O", &Formula::O, py::arg("i"))
      .def("GO", &Formula::GO, py::arg("i"))
      .def("needs", &Formula::needs, py::arg("i"))
      .def("node", &Formula::emit, py::arg("op"), py::arg("inputs"), py::arg("domain") = "", py::arg("outputs") = 1)
      .def("constant", &Formula::constant, py::arg("data"), py::arg("like") = std::nullopt)
      .def(
          "sizes_of", [](const Formula& f, const FormulaValue& v) { return f.wrap(f.context().sizes_of(v.get())); },
          py::arg("value"))
      .def(
          "zeros_like", [](const Formula& f, const FormulaValue& v) { return f.wrap(f.context().zeros_like(v.get())); },
          py::arg("value"))
      .def(
          "reduce_to",
          [](const Formula& f, const FormulaValue& v, const FormulaValue& like) {
            return f.wrap(f.context().reduce_to(v.get(), like.get()));
          },
          py::arg("value"), py::arg("like"));
  m.def(
      "register_gradient",
      [](const std::string& domain, const std::string& op, const py::function& formula, bool replace) {
        // Formulas live as long as the process, the interpreter may not.
        auto* kept = new py::function(formula);
        const auto call = [kept](GradContext& context) {
          const py::gil_scoped_acquire gil;
          // An error's traceback may hold the Python object longer than the call: it is marked dead, not freed.
          const auto view = std::make_shared<Formula>(context);
          struct End {
            Formula& formula;
            ~End() { formula.end(); }
          } end{*view};
          view->take((*kept)(py::cast(view)));
        };
        set_user_gradient(domain, op, call, replace);
      },
      py::arg("domain"), py::arg("op"), py::arg("formula"), py::arg("replace") = false);
  m.def("remove_gradient", &remove_user_gradient, py::arg("domain"), py::arg("op"));
}

}  // namespace ortmodule

#include "bindings/calls/fast_call.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <memory>
#include <optional>

#include "bindings/calls/argument_aliases.h"
#include "bindings/calls/call_pattern.h"
#include "bindings/calls/given_containers.h"
#include "bindings/calls/module_tensors.h"
#include "bindings/watching/own_attributes.h"
#include "bindings/watching/watches.h"
#include "session/session.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// Where a graph input comes from: leaf `index` of the call, tensor `index` of the module, or constant `index`.
struct Source {
  enum class Kind { kLeaf, kModule, kConstant } kind;
  size_t index;
};

// Whether hooks of a user's are to see what this thread saves for backward. Those of torch's checkpoint only drop it: a
// call of the engine inside one, which saves nothing through autograd, is the same without them.
// It runs the forward twice, though, so that one that writes something goes there.
bool saved_tensors_are_hooked(bool writes) {
  if (!at::GradMode::is_enabled()) return false;
  const auto& stack = at::SavedTensorDefaultHooks::get_tls_state().stack;
  if (stack.empty() || writes) return !stack.empty();
  static PyObject* const checkpoint =
      py::object(py::module_::import("torch.utils.checkpoint").attr("__dict__")).release().ptr();
  PyObject* const pack = stack.top().first.ptr(getPyInterpreter());
  return !PyFunction_Check(pack) || PyFunction_GET_GLOBALS(pack) != checkpoint;
}

// Whether something is active that must see every operator: see ortmodule/eager_calls.py.
bool stays_eager(bool writes) {
  if (torch::autograd::AnomalyMode::is_enabled()) return true;
  if (saved_tensors_are_hooked(writes)) return true;
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) || torch::jit::tracer::isTracing();
}

// The modes that stand before torch's functions, outermost first: of a default device, or the call stays in PyTorch.
std::vector<py::object> function_modes() {
  std::vector<py::object> modes;
  for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i)
    modes.push_back(
        py::reinterpret_borrow<py::object>(at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter())));
  return modes;
}

class FastCall {
 public:
  // sources: int (leaf) | (dict, key) | tensor, per graph input. watches: see Watches; missing: what stands there for
  // what is not there.
  // unread: the module's tensors that are no graph inputs. further: those at places that are none, which may be inputs
  // by another name; `watches` has the places.
  // guard: called with the call's tensors, returns None while it holds. restore: called with (outputs, leaves as
  // given by pytree's order or None, the call's containers but tuples) to build the result; None: the result is the one
  // output tensor.
  // reached: containers that the forward reaches by itself, none of which a call may be given.
  // leaves, given: the leaves and containers, tuples apart, that the package has found in the example.
  FastCall(std::shared_ptr<Session> session, const py::tuple& args, const py::dict& kwargs,
           const std::vector<std::pair<size_t, size_t>>& dynamic, const py::list& sources, const py::list& watches,
           py::object missing, const std::vector<at::Tensor>& unread, const py::list& further, py::object guard,
           py::object restore, const py::list& reached, const py::list& leaves, const py::list& given)
      : session_(std::move(session)),
        args_(args, dynamic),
        kwargs_(kwargs, shifted(dynamic, args_.leaf_count())),
        guard_(std::move(guard)),
        restore_(std::move(restore)),
        grad_mode_(at::GradMode::is_enabled()),
        inference_mode_(c10::InferenceMode::is_enabled()),
        default_dtype_(c10::get_default_dtype_as_scalartype()),
        unread_(unread) {
    for (const py::handle item : sources) sources_.push_back(read_source(item));
    for (size_t i = 0; i < sources_.size(); ++i)
      if (sources_[i].kind == Source::Kind::kLeaf) unchecked_.push_back(i);
    watches_.set_missing(std::move(missing));
    const auto looked_at = tensors_.bare();
    for (const py::handle item : watches) {
      const auto watch = py::reinterpret_borrow<py::tuple>(item);
      if (watch[0].cast<std::string_view>() != "bare" || !looked_at.contains(py::object(watch[1]).ptr()))
        watches_.add(watch);
    }
    watches_.settle();
    for (const py::handle tensor : further) tensors_.add_other(tensor.ptr());
    tensors_.settle();
    for (const auto type : {at::kCPU, at::kCUDA}) autocast_.push_back(autocast_state(type));
    function_modes_ = function_modes();
    for (const auto& [output, input] : session_->mutations()) {
      const bool of_call = sources_[input].kind == Source::Kind::kLeaf;
      written_.insert(of_call ? written_.begin() : written_.end(), input);
      written_arguments_ += of_call;
    }
    MatchedCall example;
    std::vector<at::Tensor> inputs;
    if (!args_.match(args.ptr(), example) || !kwargs_.match(kwargs.ptr(), example))
      throw py::type_error("no native pattern for arguments that change when they are looked at");
    if (!consists_of(example, leaves, given)) throw py::type_error("no native pattern for what pytree has otherwise");
    if (!example.containers.empty()) containers_.emplace(example.containers, reached);
    if (tensors_.find() && gather(example.leaves, inputs)) same_ = aliases_.found();
  }

  // The result, or NotImplemented when anything differs.
  py::object call(const py::tuple& args, const py::dict& kwargs) {
    MatchedCall given;
    std::vector<at::Tensor> inputs;
    inputs.swap(spare_inputs_);  // with the GIL, and empty
    if (!check(args, kwargs, given, inputs)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    const py::list containers = restore_.is_none() ? py::list() : but_tuples(given);  // held before others can run
    std::vector<at::Tensor> outputs;
    {
      const py::gil_scoped_release release;
      outputs = session_->run(std::move(inputs), runs_ > 0 ? &unchecked_ : nullptr);
    }
    ++runs_;  // the inputs fit
    inputs.clear();
    inputs.swap(spare_inputs_);
    if (restore_.is_none()) return py::cast(std::move(outputs[0]));
    py::list leaves;
    for (at::Tensor& leaf : given.leaves) leaves.append(leaf.defined() ? py::cast(leaf) : py::none());
    return restore_(std::move(outputs), leaves, containers);
  }

  bool matches(const py::tuple& args, const py::dict& kwargs) {
    MatchedCall given;
    std::vector<at::Tensor> inputs;
    return check(args, kwargs, given, inputs);
  }

  // Whether everything that is watched is as it was, whatever the call.
  bool holds() { return watches_.hold(); }

  int64_t runs() const { return runs_; }
  uint64_t compared() const { return watches_.compared(); }

  // What is watched may lead back to the module that holds this.
  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(guard_.ptr());
    Py_VISIT(restore_.ptr());
    const int stop = watches_.traverse(visit, arg);
    return stop ? stop : tensors_.traverse(visit, arg);
  }

  // Nothing fits any more.
  void clear() {
    watches_.clear();
    tensors_.clear();
    const py::object guard = std::exchange(guard_, py::none()), restore = std::exchange(restore_, py::none());
  }

 private:
  static py::list but_tuples(const MatchedCall& call) {
    py::list containers;
    for (PyObject* const container : call.containers)
      if (!PyTuple_Check(container)) containers.append(py::handle(container));
    return containers;
  }

  // Whether these are the tensors and containers of a call, in the same order.
  static bool consists_of(const MatchedCall& call, const py::list& leaves, const py::list& given) {
    const py::list containers = but_tuples(call);
    if (call.leaves.size() != leaves.size() || containers.size() != given.size()) return false;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const py::object leaf = leaves[i];
      const at::Tensor tensor = THPVariable_Check(leaf.ptr()) ? THPVariable_Unpack(leaf.ptr()) : at::Tensor();
      const at::Tensor& found = call.leaves[i];
      const bool sizes = tensor.defined() && found.defined() && tensor.numel() == 0 && tensor.sizes() == found.sizes();
      if (!tensor.is_same(found) && !sizes) return false;  // a size that stands for a number is made anew
    }
    return std::equal(containers.begin(), containers.end(), given.begin(),
                      [](const py::handle& a, const py::handle& b) { return a.is(b); });
  }

  // Whether the call is like the one this was made for; what it is made of and the graph's inputs, if so.
  bool check(const py::tuple& args, const py::dict& kwargs, MatchedCall& given, std::vector<at::Tensor>& inputs) {
    if (at::GradMode::is_enabled() != grad_mode_ || c10::InferenceMode::is_enabled() != inference_mode_) return false;
    if (c10::get_default_dtype_as_scalartype() != default_dtype_) return false;
    if (stays_eager(!written_.empty())) return false;
    if (!same_function_modes()) return false;
    if (autocast_state(at::kCPU) != autocast_[0] || autocast_state(at::kCUDA) != autocast_[1]) return false;
    given.leaves.reserve(args_.leaf_count() + kwargs_.leaf_count());
    if (!args_.match(args.ptr(), given) || !kwargs_.match(kwargs.ptr(), given)) return false;
    if (containers_ && !containers_->admit(given.containers)) return false;
    if (!watches_.hold() || !tensors_.find()) return false;
    if (!gather(given.leaves, inputs) || aliases_.found() != same_ || write_meets_argument(inputs)) return false;
    if (!guard_.is_none()) {
      py::list tensors;
      for (const at::Tensor& leaf : given.leaves)
        if (leaf.defined()) tensors.append(leaf);
      if (!guard_(tensors).is_none()) return false;
    }
    return true;
  }

  // The graph's inputs; false where a tensor of the module is not what it was. `aliases_` has met all of them.
  bool gather(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor>& inputs) {
    inputs.resize(sources_.size());
    at::Tensor* next = inputs.data();
    aliases_.begin(leaves);
    const uint64_t mask = aliases_.mask();
    for (const Source& source : sources_) {
      switch (source.kind) {
        case Source::Kind::kLeaf:
          *next++ = leaves[source.index];
          break;
        case Source::Kind::kConstant:
          *next++ = constants_[source.index];
          break;
        case Source::Kind::kModule:
          const at::Tensor* tensor = tensors_.read(source.index);
          if (!tensor) return false;
          aliases_.meet(*tensor, source.index, mask);
          *next++ = *tensor;
      }
    }
    for (size_t i = 0; i < unread_.size(); ++i) aliases_.meet(unread_[i], sources_.size() + i, mask);
    return true;
  }

  bool write_meets_argument(const std::vector<at::Tensor>& inputs) const {
    if (written_.empty()) return false;
    std::vector<const at::Tensor*> written;
    written.reserve(written_.size());
    for (size_t input : written_) written.push_back(&inputs[input]);
    return aliases_.write_meets(written, written_arguments_);
  }

  static std::vector<std::pair<size_t, size_t>> shifted(const std::vector<std::pair<size_t, size_t>>& dynamic,
                                                        size_t by) {
    std::vector<std::pair<size_t, size_t>> out;
    for (const auto& [leaf, axis] : dynamic)
      if (leaf >= by) out.emplace_back(leaf - by, axis);
    return out;
  }

  bool same_function_modes() const {
    if (at::impl::PythonTorchFunctionTLS::stack_len() != static_cast<int64_t>(function_modes_.size())) return false;
    if (function_modes_.empty()) return true;
    const auto now = function_modes();
    return std::equal(now.begin(), now.end(), function_modes_.begin(),
                      [](const auto& a, const auto& b) { return a.is(b); });
  }

  static std::pair<bool, at::ScalarType> autocast_state(at::DeviceType type) {
    const bool on = at::autocast::is_autocast_enabled(type);
    return {on, on ? at::autocast::get_autocast_dtype(type) : at::kFloat};
  }

  Source read_source(const py::handle& item) {
    if (py::isinstance<py::int_>(item)) return {Source::Kind::kLeaf, item.cast<size_t>()};
    if (THPVariable_Check(item.ptr())) {
      constants_.push_back(THPVariable_Unpack(item.ptr()));
      return {Source::Kind::kConstant, constants_.size() - 1};
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    return {Source::Kind::kModule, tensors_.add(pair[0], pair[1])};
  }

  std::shared_ptr<Session> session_;
  CallPattern args_, kwargs_;
  std::optional<GivenContainers> containers_;  // none: a call has no such
  py::object guard_, restore_;
  bool grad_mode_, inference_mode_;
  at::ScalarType default_dtype_;
  std::vector<std::pair<bool, at::ScalarType>> autocast_;
  std::vector<py::object> function_modes_;
  std::vector<Source> sources_;
  ModuleTensors tensors_;
  std::vector<at::Tensor> constants_;
  std::vector<at::Tensor> unread_;
  std::vector<size_t> written_;  // graph inputs that the call overwrites: arguments, then others
  size_t written_arguments_ = 0;
  ArgumentAliases aliases_;
  ArgumentAliases::Found same_;           // of the calls that this is for
  std::vector<size_t> unchecked_;         // sources that are not of the same type and sizes at every call
  std::vector<at::Tensor> spare_inputs_;  // room for a call's tensors, kept from call to call
  Watches watches_;
  int64_t runs_ = 0;
};

// Null for one whose constructor has not returned.
FastCall* made(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  return instance->simple_layout && instance->simple_holder_constructed
             ? static_cast<FastCall*>(instance->simple_value_holder[0])
             : nullptr;
}

void take_part_in_collection(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    FastCall* const call = made(self);
    return call ? call->traverse(visit, arg) : 0;
  };
  type.tp_clear = [](PyObject* self) {
    if (FastCall* const call = made(self)) call->clear();
    return 0;
  };
}

}  // namespace

void register_fast_call(py::module_& m) {
  m.def("watched_objects", &watched_objects, "How many Python objects tell this package of their changes.");
  m.def(
      "has_no_attributes", [](const py::object& object) { return has_no_attributes(object.ptr()); }, py::arg("object"),
      "Whether an object has no attributes of its own; a look at `__dict__` would make a dict of them.");
  m.def(
      "take_apart", [](const py::type& kind) { take_apart(kind); }, py::arg("type"),
      "From now on native patterns take plain objects of this class apart into the attributes in their `__dict__`.");
  m.def(
      "count", [](const py::type& kind, const std::string& name) { count(kind, name); }, py::arg("type"),
      py::arg("name"), "From now on a whole number in this attribute is a leaf: an empty tensor of that size.");
  m.def("class_version", &class_version, py::arg("type"),
        "A number that changes with the class and its bases; 0 where Python does not count.");
  py::class_<FastCall>(m, "FastCall", "A session bound to a call pattern: checks a call and runs it.",
                       py::custom_type_setup(&take_part_in_collection))
      .def(py::init<std::shared_ptr<Session>, const py::tuple&, const py::dict&,
                    const std::vector<std::pair<size_t, size_t>>&, const py::list&, const py::list&, py::object,
                    const std::vector<at::Tensor>&, const py::list&, py::object, py::object, const py::list&,
                    const py::list&, const py::list&>(),
           py::arg("session"), py::arg("args"), py::arg("kwargs"), py::arg("dynamic"), py::arg("sources"),
           py::arg("watches"), py::arg("missing"), py::arg("unread"), py::arg("further"), py::arg("guard"),
           py::arg("restore"), py::arg("reached"), py::arg("leaves"), py::arg("given"))
      .def("call", &FastCall::call, py::arg("args"), py::arg("kwargs"),
           "The module's result, or NotImplemented when the call differs in anything that matters.")
      .def("matches", &FastCall::matches, py::arg("args"), py::arg("kwargs"), "Whether `call` would run.")
      .def("holds", &FastCall::holds, "Whether the Python objects that it watches are as they were.")
      .def_property_readonly("runs", &FastCall::runs)
      .def_property_readonly("compared", &FastCall::compared, "Watched values that were compared so far.");
}

}  // namespace ortmodule

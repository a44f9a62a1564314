#include "bindings/fast_call.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <optional>
#include <unordered_map>

#include "bindings/call_pattern.h"
#include "bindings/session.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// Note [Versions of dicts]
// Everything a module holds lies in dicts, and CPython up to 3.12 counts a dict's changes. While a dict's version is
// what it was when its entries were last compared, they are the same objects. A value that counts by what it holds
// (a list) may change all the same, and is compared on every call. From 3.13 on a change of an attribute does not
// always reach the version of the instance's dict, and every entry is compared on every call.
constexpr uint64_t kNoVersion = 0;

#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
uint64_t version_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
#pragma GCC diagnostic pop
#else
uint64_t version_of(PyObject*) { return kNoVersion; }
#endif

// Whether a value is what it is for as long as it is the same object.
bool immutable(PyObject* value) {
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyUnicode_CheckExact(value);
}

// A named entry of a dict that must stay as it was; `holder` is the dict, or an object to ask by getattr.
struct Watch {
  py::object holder, key, expected;

  // Whether the entry holds for as long as its dict does not change.
  bool by_version() const {
    if (!PyDict_CheckExact(holder.ptr())) return false;
    if (immutable(expected.ptr())) return true;
    return PyDict_GetItemWithError(holder.ptr(), key.ptr()) == expected.ptr();
  }

  bool holds() const {
    PyObject* now = nullptr;
    py::object owned;
    if (PyDict_CheckExact(holder.ptr())) {
      now = PyDict_GetItemWithError(holder.ptr(), key.ptr());
    } else {
      owned = py::reinterpret_steal<py::object>(PyObject_GetAttr(holder.ptr(), key.ptr()));
      now = owned.ptr();
    }
    if (now == expected.ptr()) return true;
    if (!now) {
      PyErr_Clear();
      return false;
    }
    if (Py_TYPE(now) != Py_TYPE(expected.ptr()) || THPVariable_Check(now)) return false;
    const int equal = PyObject_RichCompareBool(now, expected.ptr(), Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
  }
};

// A dict whose length must stay (a module's hooks, parameters, children). There are several per module, and they are
// looked at on every call: the length is read where it lies.
struct WatchedLength {
  py::object dict;
  Py_ssize_t length;

  bool holds() const { return reinterpret_cast<const PyDictObject*>(dict.ptr())->ma_used == length; }
};

// The entries of one dict that need a look only when the dict changed.
struct WatchedDict {
  py::object dict;
  uint64_t version = kNoVersion;
  std::vector<Watch> watches;

  bool holds() {
    const uint64_t now = version_of(dict.ptr());
    if (now != kNoVersion && now == version) return true;
    for (const Watch& watch : watches)
      if (!(watch.by_version() && watch.holds())) return false;
    version = now;
    return true;
  }
};

// Where a graph input comes from: a leaf of the call, a tensor of the module, or a constant.
struct Source {
  long leaf = -1;
  py::object holder, key;  // a module's _parameters or _buffers
  at::Tensor constant;
  std::optional<TensorPattern> expected;  // of the module's tensors
  PyTypeObject* type = nullptr;           // theirs
  uint64_t version = kNoVersion;          // of `holder` when `found` was looked up
  py::object found;

  // A class of tensors may have operations of its own; a plain tensor may stand in for a parameter.
  bool fits(PyTypeObject* now) const {
    return now == type || (THPVariable_CheckTypeExact(now) && THPVariable_CheckTypeExact(type));
  }

  // The module's tensor, looked up again only when its dict changed; null when there is none. The Python object is
  // kept, not the tensor in it: torch.utils.swap_tensors exchanges that.
  const at::Tensor* read() {
    const uint64_t now = version_of(holder.ptr());
    if (now == kNoVersion || now != version) {
      found = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(holder.ptr(), key.ptr()));
      if (!found || !fits(Py_TYPE(found.ptr()))) found = {};
      version = now;
    }
    return found ? &THPVariable_Unpack(found.ptr()) : nullptr;
  }
};

// Whether a trace, a transform or a mode is active that must see every operator: see ortmodule/eager_calls.py.
bool stays_eager() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0) || torch::jit::tracer::isTracing();
}

class FastCall {
 public:
  // sources: int (leaf) | (dict, key) | tensor, per graph input. watches: (dict or object, key, expected), or
  // (dict, None, length).
  // guard: called with the call's tensors, returns None while it holds. restore: called with (outputs, leaves as
  // given by pytree's order or None) to build the result; None: the result is the one output tensor.
  FastCall(std::shared_ptr<Session> session, const py::tuple& args, const py::dict& kwargs,
           const std::vector<std::pair<size_t, size_t>>& dynamic, const py::list& sources, const py::list& watches,
           py::object guard, py::object restore)
      : session_(std::move(session)),
        args_(args, dynamic),
        kwargs_(kwargs, shifted(dynamic, args_.leaf_count())),
        guard_(std::move(guard)),
        restore_(std::move(restore)),
        grad_mode_(at::GradMode::is_enabled()),
        inference_mode_(c10::InferenceMode::is_enabled()),
        default_dtype_(c10::get_default_dtype_as_scalartype()) {
    for (const py::handle item : sources) sources_.push_back(read_source(item));
    for (const Source& source : sources_) checked_.push_back(source.leaf < 0);
    std::unordered_map<PyObject*, size_t> place;
    for (const py::handle item : watches) {
      const auto triple = py::reinterpret_borrow<py::tuple>(item);
      if (triple[1].is_none()) {
        if (!PyDict_Check(py::object(triple[0]).ptr())) throw py::type_error("only a dict's length can be watched");
        lengths_.push_back({triple[0], triple[2].cast<Py_ssize_t>()});
        continue;
      }
      Watch watch{triple[0], triple[1], triple[2]};
      if (!watch.by_version()) {
        always_.push_back(std::move(watch));
        continue;
      }
      const auto [it, fresh] = place.try_emplace(watch.holder.ptr(), dicts_.size());
      if (fresh) dicts_.push_back({watch.holder, kNoVersion, {}});
      dicts_[it->second].watches.push_back(std::move(watch));
    }
    for (const auto type : {at::kCPU, at::kCUDA}) autocast_.push_back(autocast_state(type));
  }

  // The result, or NotImplemented when anything differs.
  py::object call(const py::tuple& args, const py::dict& kwargs) {
    std::vector<at::Tensor> leaves, inputs;
    inputs.swap(spare_inputs_);  // with the GIL, and empty
    if (!check(args, kwargs, leaves, inputs)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    std::vector<at::Tensor> outputs = session_->run(inputs, runs_ > 0 ? &checked_ : nullptr);
    ++runs_;  // the inputs fit
    inputs.clear();
    inputs.swap(spare_inputs_);
    if (restore_.is_none()) return py::cast(std::move(outputs[0]));
    py::list given;
    for (at::Tensor& leaf : leaves) given.append(leaf.defined() ? py::cast(leaf) : py::none());
    return restore_(std::move(outputs), given);
  }

  bool matches(const py::tuple& args, const py::dict& kwargs) {
    std::vector<at::Tensor> leaves, inputs;
    return check(args, kwargs, leaves, inputs);
  }

  int64_t runs() const { return runs_; }

 private:
  // Whether the call is like the one this was made for; its leaves and the graph's inputs, if so.
  bool check(const py::tuple& args, const py::dict& kwargs, std::vector<at::Tensor>& leaves,
             std::vector<at::Tensor>& inputs) {
    if (at::GradMode::is_enabled() != grad_mode_ || c10::InferenceMode::is_enabled() != inference_mode_) return false;
    if (c10::get_default_dtype_as_scalartype() != default_dtype_ || stays_eager()) return false;
    if (autocast_state(at::kCPU) != autocast_[0] || autocast_state(at::kCUDA) != autocast_[1]) return false;
    leaves.reserve(args_.leaf_count() + kwargs_.leaf_count());
    if (!args_.match(args.ptr(), leaves) || !kwargs_.match(kwargs.ptr(), leaves)) return false;
    for (const Watch& watch : always_)
      if (!watch.holds()) return false;
    for (const WatchedLength& dict : lengths_)
      if (!dict.holds()) return false;
    for (WatchedDict& dict : dicts_)
      if (!dict.holds()) return false;
    inputs.reserve(sources_.size());
    for (Source& source : sources_) {
      if (source.leaf >= 0) {
        inputs.push_back(leaves[source.leaf]);
      } else if (source.constant.defined()) {
        inputs.push_back(source.constant);
      } else {
        const at::Tensor* tensor = source.read();
        if (!tensor || !source.expected->matches(*tensor)) return false;
        inputs.push_back(*tensor);
      }
    }
    if (!guard_.is_none()) {
      py::list tensors;
      for (const at::Tensor& leaf : leaves)
        if (leaf.defined()) tensors.append(leaf);
      if (!guard_(tensors).is_none()) return false;
    }
    return true;
  }

  static std::vector<std::pair<size_t, size_t>> shifted(const std::vector<std::pair<size_t, size_t>>& dynamic,
                                                        size_t by) {
    std::vector<std::pair<size_t, size_t>> out;
    for (const auto& [leaf, axis] : dynamic)
      if (leaf >= by) out.emplace_back(leaf - by, axis);
    return out;
  }

  static std::pair<bool, at::ScalarType> autocast_state(at::DeviceType type) {
    const bool on = at::autocast::is_autocast_enabled(type);
    return {on, on ? at::autocast::get_autocast_dtype(type) : at::kFloat};
  }

  static Source read_source(const py::handle& item) {
    Source source;
    if (py::isinstance<py::int_>(item)) {
      source.leaf = item.cast<long>();
    } else if (THPVariable_Check(item.ptr())) {
      source.constant = THPVariable_Unpack(item.ptr());
    } else {
      const auto pair = py::reinterpret_borrow<py::tuple>(item);
      source.holder = pair[0];
      source.key = pair[1];
      const py::object held = source.holder[source.key];
      const auto t = py::cast<at::Tensor>(held);
      source.type = Py_TYPE(held.ptr());
      source.expected = TensorPattern{t.scalar_type(), t.device(), t.requires_grad(), c10::DimVector(t.sizes())};
    }
    return source;
  }

  std::shared_ptr<Session> session_;
  CallPattern args_, kwargs_;
  py::object guard_, restore_;
  bool grad_mode_, inference_mode_;
  at::ScalarType default_dtype_;
  std::vector<std::pair<bool, at::ScalarType>> autocast_;
  std::vector<Source> sources_;
  std::vector<char> checked_;             // per source: of the same type and sizes at every call
  std::vector<at::Tensor> spare_inputs_;  // room for a call's tensors, kept from call to call
  std::vector<Watch> always_;
  std::vector<WatchedLength> lengths_;
  std::vector<WatchedDict> dicts_;
  int64_t runs_ = 0;
};

}  // namespace

void register_fast_call(py::module_& m) {
  py::class_<FastCall>(m, "FastCall", "A session bound to a call pattern: checks a call and runs it.")
      .def(py::init<std::shared_ptr<Session>, const py::tuple&, const py::dict&,
                    const std::vector<std::pair<size_t, size_t>>&, const py::list&, const py::list&, py::object,
                    py::object>(),
           py::arg("session"), py::arg("args"), py::arg("kwargs"), py::arg("dynamic"), py::arg("sources"),
           py::arg("watches"), py::arg("guard"), py::arg("restore"))
      .def("call", &FastCall::call, py::arg("args"), py::arg("kwargs"),
           "The module's result, or NotImplemented when the call differs in anything that matters.")
      .def("matches", &FastCall::matches, py::arg("args"), py::arg("kwargs"), "Whether `call` would run.")
      .def_property_readonly("runs", &FastCall::runs);
}

}  // namespace ortmodule

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

#include <algorithm>
#include <array>
#include <memory>
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

// Dicts whose length must stay (a module's hooks, parameters, children). There are several per module, most of them
// empty, and each call looks at all of them: the lengths are read where they lie.
class WatchedLengths {
 public:
  void add(const py::object& dict, Py_ssize_t length) {
    if (!PyDict_Check(dict.ptr())) throw py::type_error("only a dict's length can be watched");
    if (length == 0)
      empty_.push_back(dict);
    else
      filled_.emplace_back(dict, length);
  }
  bool hold() const {
    for (const py::object& dict : empty_)
      if (length_of(dict) != 0) return false;
    for (const auto& [dict, length] : filled_)
      if (length_of(dict) != length) return false;
    return true;
  }

 private:
  static Py_ssize_t length_of(const py::object& dict) {
    return reinterpret_cast<const PyDictObject*>(dict.ptr())->ma_used;
  }
  std::vector<py::object> empty_;
  std::vector<std::pair<py::object, Py_ssize_t>> filled_;
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

// A tensor of the module. There are hundreds, and each call looks at all of them: what it reads lies together.
struct alignas(64) ModuleTensor {
  PyObject* holder;               // the module's _parameters or _buffers
  PyObject* found = nullptr;      // there, when its version was `version`; null: nothing that fits
  uint64_t version = kNoVersion;  // of `holder`
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  uint8_t dimensions;  // kMany: `pattern` has the sizes
  std::array<int64_t, 3> sizes{};
  struct Rest {
    py::object holder, key, found;  // which those above borrow
    PyTypeObject* type;
    TensorPattern pattern;
  };
  std::unique_ptr<Rest> rest;
  static constexpr uint8_t kMany = 255;

  ModuleTensor(const py::object& in, const py::object& key, const py::object& held)
      : ModuleTensor(in, key, held, TensorPattern::of(THPVariable_Unpack(held.ptr()))) {}

  // A class of tensors may have operations of its own; a plain tensor may stand in for a parameter.
  bool fits(PyTypeObject* now) const {
    return now == rest->type || (THPVariable_CheckTypeExact(now) && THPVariable_CheckTypeExact(rest->type));
  }

  bool matches(const at::Tensor& t) const {
    if (dimensions == kMany) return rest->pattern.matches(t);
    if (!matches_but_for_sizes(t, dtype, device, requires_grad)) return false;
    const auto now = t.sizes();
    if (now.size() != dimensions) return false;
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i] != sizes[i]) return false;
    return true;
  }

  // The tensor, looked up again only when its dict changed; null when there is none that matches. The Python object is
  // kept, not the tensor in it: torch.utils.swap_tensors exchanges that.
  const at::Tensor* read() {
    const uint64_t now = version_of(holder);
    if (now == kNoVersion || now != version) {
      rest->found = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(holder, rest->key.ptr()));
      if (!rest->found || !fits(Py_TYPE(rest->found.ptr()))) rest->found = {};
      found = rest->found.ptr();
      version = now;
    }
    if (!found) return nullptr;
    const at::Tensor& tensor = THPVariable_Unpack(found);
    return matches(tensor) ? &tensor : nullptr;
  }

 private:
  ModuleTensor(const py::object& in, const py::object& key, const py::object& held, TensorPattern pattern)
      : holder(in.ptr()),
        dtype(pattern.dtype),
        device(pattern.device),
        requires_grad(pattern.requires_grad),
        dimensions(pattern.sizes.size() <= sizes.size() ? static_cast<uint8_t>(pattern.sizes.size()) : kMany),
        rest(std::make_unique<Rest>(Rest{in, key, {}, Py_TYPE(held.ptr()), std::move(pattern)})) {
    if (dimensions != kMany) std::copy(rest->pattern.sizes.begin(), rest->pattern.sizes.end(), sizes.begin());
  }
};
static_assert(sizeof(ModuleTensor) == 64);

// Where a graph input comes from: leaf `index` of the call, tensor `index` of the module, or constant `index`.
struct Source {
  enum class Kind { kLeaf, kModule, kConstant } kind;
  size_t index;
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
    for (const Source& source : sources_) checked_.push_back(source.kind != Source::Kind::kLeaf);
    std::unordered_map<PyObject*, size_t> place;
    for (const py::handle item : watches) {
      const auto triple = py::reinterpret_borrow<py::tuple>(item);
      if (triple[1].is_none()) {
        lengths_.add(triple[0], triple[2].cast<Py_ssize_t>());
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
    std::vector<at::Tensor> outputs = session_->run(std::move(inputs), runs_ > 0 ? &checked_ : nullptr);
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
    if (!lengths_.hold()) return false;
    for (WatchedDict& dict : dicts_)
      if (!dict.holds()) return false;
    inputs.reserve(sources_.size());
    for (const Source& source : sources_) {
      switch (source.kind) {
        case Source::Kind::kLeaf:
          inputs.push_back(leaves[source.index]);
          break;
        case Source::Kind::kConstant:
          inputs.push_back(constants_[source.index]);
          break;
        case Source::Kind::kModule:
          const at::Tensor* tensor = tensors_[source.index].read();
          if (!tensor) return false;
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

  Source read_source(const py::handle& item) {
    if (py::isinstance<py::int_>(item)) return {Source::Kind::kLeaf, item.cast<size_t>()};
    if (THPVariable_Check(item.ptr())) {
      constants_.push_back(THPVariable_Unpack(item.ptr()));
      return {Source::Kind::kConstant, constants_.size() - 1};
    }
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    tensors_.emplace_back(pair[0], pair[1], pair[0][pair[1]]);
    return {Source::Kind::kModule, tensors_.size() - 1};
  }

  std::shared_ptr<Session> session_;
  CallPattern args_, kwargs_;
  py::object guard_, restore_;
  bool grad_mode_, inference_mode_;
  at::ScalarType default_dtype_;
  std::vector<std::pair<bool, at::ScalarType>> autocast_;
  std::vector<Source> sources_;
  std::vector<ModuleTensor> tensors_;
  std::vector<at::Tensor> constants_;
  std::vector<char> checked_;             // per source: of the same type and sizes at every call
  std::vector<at::Tensor> spare_inputs_;  // room for a call's tensors, kept from call to call
  std::vector<Watch> always_;
  WatchedLengths lengths_;
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

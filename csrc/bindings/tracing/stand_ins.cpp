#include "bindings/tracing/stand_ins.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ortmodule {
namespace {

// Collects what an operator's result is like by: numbers as bytes, all else as objects.
class Key {
 public:
  // `kind`: the class of the stand-ins; `mode`: what they all belong to.
  Key(py::handle kind, py::handle mode) : kind_(kind), mode_(mode) {}

  // False: it cannot be told.
  bool add(py::handle value) {  // NOLINT(misc-no-recursion)
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(value.ptr()));
    if (type == kind_.ptr()) return add_tensor(value);
    if (THPVariable_Check(value.ptr())) return false;
    if (PyTuple_CheckExact(value.ptr()) || PyList_CheckExact(value.ptr())) {
      const Py_ssize_t size = PySequence_Fast_GET_SIZE(value.ptr());
      number(PyTuple_CheckExact(value.ptr()) ? kTuple : kList);
      number(size);
      for (Py_ssize_t i = 0; i < size; ++i)
        if (!add(PySequence_Fast_GET_ITEM(value.ptr(), i))) return false;
      return true;
    }
    if (torch::is_symint(value)) {
      number(kSymbolic);
      object(value.attr("node").attr("_expr"));
      return true;
    }
    return add_plain(value, type);
  }

  // Its kind, sizes and strides, as far as its fields say; not its device, or where it lies.
  bool add_form(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.layout() != c10::kStrided || !impl.has_storage() || impl.is_sparse() || tensor.is_nested()) return false;
    const c10::ScalarType dtype = c10::typeMetaToScalarType(impl.dtype());
    if (c10::isQIntType(dtype)) return false;
    number(kTensor);
    number(impl.dim());
    number(static_cast<int64_t>(dtype));
    number((tensor.requires_grad() ? 1 : 0) | (tensor.is_conj() ? 2 : 0) | (tensor.is_neg() ? 4 : 0) |
           (tensor.is_inference() ? 8 : 0) | (tensor.is_leaf() ? 16 : 0));
    bool told = true;
    for (const c10::SymInt& size : impl.sym_sizes()) told = told && add_size(size);
    for (const c10::SymInt& stride : impl.sym_strides()) told = told && add_size(stride);
    return told;
  }

  bool add_named(const py::dict& values) {
    number(static_cast<int64_t>(values.size()));
    for (const auto& [name, value] : values) {
      object(py::reinterpret_borrow<py::object>(name));
      if (!add(value)) return false;
    }
    return true;
  }

  py::tuple done() {
    py::tuple key(objects_.size() + 1);
    key[0] = py::bytes(numbers_);
    for (size_t i = 0; i < objects_.size(); ++i) key[i + 1] = std::move(objects_[i]);
    return key;
  }

 private:
  enum Mark : int64_t { kTensor = -1000, kTuple, kList, kSymbolic, kObject, kFlag, kNumber };

  void number(int64_t value) { numbers_.append(reinterpret_cast<const char*>(&value), sizeof value); }

  void object(py::object value) { objects_.push_back(std::move(value)); }

  bool add_plain(py::handle value, PyObject* type) {
    if (PyBool_Check(value.ptr())) {
      number(kFlag);
      number(value.ptr() == Py_True ? 1 : 0);
      return true;
    }
    if (PyLong_CheckExact(value.ptr())) {
      int overflow = 0;
      const int64_t read = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
      number(kNumber);
      number(read);
      return overflow == 0;
    }
    const bool of_torch = THPDtype_Check(value.ptr()) || THPDevice_Check(value.ptr()) || THPLayout_Check(value.ptr()) ||
                          THPMemoryFormat_Check(value.ptr());
    if (value.is_none() || PyFloat_CheckExact(value.ptr()) || PyUnicode_CheckExact(value.ptr()) || of_torch) {
      number(kObject);
      object(py::reinterpret_borrow<py::object>(type));
      object(py::reinterpret_borrow<py::object>(value));
      return true;
    }
    return false;
  }

  bool add_size(const c10::SymInt& size) {
    if (!size.is_heap_allocated()) {
      number(size.as_int_unchecked());
      return true;
    }
    const c10::SymNode node = size.toSymNode();
    const auto* const python = dynamic_cast<const torch::impl::PythonSymNodeImpl*>(node.get());
    if (python == nullptr) return false;
    number(kSymbolic);
    object(python->getPyObj().attr("_expr"));
    return true;
  }

  // Which of the tensors before is the same, and which has the same memory, belongs to it.
  bool add_tensor(py::handle value) {
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!py::object(value.attr("fake_mode")).is(mode_) || !py::object(value.attr("constant")).is_none()) return false;
    if (!add_form(tensor)) return false;
    const c10::Storage& storage = impl.unsafe_storage();
    number(position(tensors_, static_cast<const void*>(&impl)));
    number(position(storages_, static_cast<const void*>(storage.unsafeGetStorageImpl())));
    object(value.attr("fake_device"));
    return add_size(impl.sym_storage_offset()) && add_size(storage.sym_nbytes());
  }

  static int64_t position(std::vector<const void*>& among, const void* what) {
    for (size_t i = 0; i < among.size(); ++i)
      if (among[i] == what) return static_cast<int64_t>(i);
    among.push_back(what);
    return static_cast<int64_t>(among.size() - 1);
  }

  py::handle kind_, mode_;
  std::string numbers_;
  std::vector<py::object> objects_;
  std::vector<const void*> tensors_, storages_;
};

std::optional<py::tuple> operator_key(const py::object& function, const py::object& kind, const py::object& mode,
                                      const py::tuple& args, const py::dict& kwargs) {
  Key key(kind, mode);
  if (!key.add(args) || !key.add_named(kwargs)) return std::nullopt;
  return py::make_tuple(function, key.done());
}

std::optional<py::tuple> tensor_form(py::handle tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only a tensor has a form");
  Key key{py::none(), py::none()};
  if (!key.add_form(THPVariable_Unpack(tensor.ptr()))) return std::nullopt;
  return key.done();
}

// None: not all are torch's own in Python.
std::optional<py::list> symbols_of(py::handle tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only a tensor has sizes");
  const c10::TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
  py::list found;
  if (!impl.has_symbolic_sizes_strides()) return found;
  bool known = true;
  const auto add = [&](const c10::SymInt& number) {
    if (!number.is_heap_allocated()) return;
    const c10::SymNode node = number.toSymNode();
    const auto* const python = dynamic_cast<const torch::impl::PythonSymNodeImpl*>(node.get());
    known = known && python != nullptr;
    if (python != nullptr) found.append(python->getPyObj());
  };
  for (const c10::SymInt& size : impl.sym_sizes()) add(size);
  for (const c10::SymInt& stride : impl.sym_strides()) add(stride);
  add(impl.sym_storage_offset());
  add(impl.sym_numel());
  return known ? std::optional(found) : std::nullopt;
}

uintptr_t memory_of(py::handle tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("only a tensor has memory");
  const c10::Storage& storage = THPVariable_Unpack(tensor.ptr()).storage();
  return reinterpret_cast<uintptr_t>(storage.unsafeGetStorageImpl());
}

// Without the Python object of a stand-in, and on torch's `meta` device as its own operators would make it.
at::Tensor like(const at::Tensor& one, const std::optional<at::Tensor>& memory) {
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  auto impl = one.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  const c10::Storage& storage = (memory ? *memory : one).unsafeGetTensorImpl()->unsafe_storage();
  if (memory) {
    impl->set_storage_keep_dtype(storage);
  } else {
    impl->set_storage_keep_dtype(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.sym_nbytes(), at::DataPtr(nullptr, c10::Device(c10::kMeta)),
        c10::GetAllocator(c10::kMeta), /*resizable=*/true)));
  }
  impl->set_python_custom_device(false);
  impl->_change_backend_component_keys(c10::Device(c10::kMeta));
  return at::Tensor(std::move(impl));
}

}  // namespace

void register_stand_ins(py::module_& m) {
  m.def("operator_key", &operator_key, py::arg("function"), py::arg("kind"), py::arg("mode"), py::arg("args"),
        py::arg("kwargs"),
        "What an operator's result is like by, of what it is called with: stand-ins of the class `kind` and of `mode`, "
        "sizes and plain values; None where there is anything else.");
  m.def("tensor_form", &tensor_form, py::arg("tensor"),
        "A strided tensor's dtype, sizes, strides and flags, symbols by their expressions; None of other tensors.");
  m.def("symbols_of", &symbols_of, py::arg("tensor"),
        "The symbols among a tensor's sizes, strides, offset and number of elements, as torch's `SymNode`s; None where "
        "one is none.");
  m.def("memory_of", &memory_of, py::arg("tensor"), "A number that tensors share which share memory.");
  m.def("like_stand_in", &like, py::arg("one"), py::arg("memory"),
        "A tensor of torch's `meta` device that is like a stand-in, on the memory of another one or on its own.");
}

}  // namespace ortmodule

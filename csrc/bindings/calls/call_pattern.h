// The shape of a call's arguments: a tree of tuples, lists, dicts and plain objects over tensors and plain values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/DimVector.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace ortmodule {

// Marks of tensors that are no plain memory: a subclass with a dispatch of its own (a fake tensor), a wrapper of
// torch.func.
constexpr c10::DispatchKeySet kForeignKeys({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                            c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});

// t.requires_grad() without a virtual call.
inline bool wants_gradient(const at::Tensor& t) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(t.unsafeGetTensorImpl()->autograd_meta());
  return meta && (meta->requires_grad_ || meta->grad_fn_);
}

inline bool matches_but_for_sizes(const at::Tensor& t, at::ScalarType dtype, c10::Device device, bool requires_grad) {
  return t.scalar_type() == dtype && t.device() == device && wants_gradient(t) == requires_grad &&
         t.layout() == at::kStrided && !t.key_set().has_any(kForeignKeys);
}

// What a tensor leaf must be. A size of -1 may be anything.
struct TensorPattern {
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  c10::DimVector sizes;

  static TensorPattern of(const at::Tensor& t) {
    return {t.scalar_type(), t.device(), t.requires_grad(), c10::DimVector(t.sizes())};
  }

  bool matches(const at::Tensor& t) const {
    if (!matches_but_for_sizes(t, dtype, device, requires_grad)) return false;
    const auto have = t.sizes();
    if (have.size() != sizes.size()) return false;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] >= 0 && sizes[i] != have[i]) return false;
    return true;
  }
};

// What a call is matched to: its tensors, and the containers that hold them.
struct MatchedCall {
  std::vector<at::Tensor> leaves;  // borrowed tensors; undefined for plain values
  std::vector<PyObject*>
      containers;  // borrowed, each before what it holds; not args, kwargs and tuples of plain values
};

// From now on patterns are made of objects of this class: of an ordered dict by its entries, of any other by the
// attributes in its `__dict__`.
void take_apart(const pybind11::type& kind);

// From now on a whole number in this attribute of objects of a class that is taken apart is a leaf: an empty tensor of
// that size.
void count(const pybind11::type& kind, const std::string& name);

class CallPattern {
 public:
  // Learns from an example. `dynamic` holds (leaf index, axis) of sizes that may vary. Leaves are counted in pytree
  // order. Throws py::type_error for anything but tuple, list, dict, objects of classes that are taken apart, tensors,
  // classes, dtypes, devices, None, bool, int, float and str.
  CallPattern(const pybind11::handle& example, const std::vector<std::pair<size_t, size_t>>& dynamic);

  // Appends what `value`, which is args or kwargs, is made of. False at the first difference.
  bool match(PyObject* value, MatchedCall& call) const { return match(root_, value, call); }
  size_t leaf_count() const { return leaf_count_; }

 private:
  enum class Kind { kTensor, kValue, kTuple, kList, kDict, kObject, kSize };
  struct Entry {
    Kind kind;
    std::vector<TensorPattern> tensor;   // one for kTensor, kSize
    pybind11::object value;              // kValue; kTensor, kObject: its class
    std::vector<pybind11::object> keys;  // kDict, kObject
    std::vector<Entry> children;
    bool is_object = false;  // a container that a forward can tell from an equal one
  };
  Entry learn(const pybind11::handle& example, const std::vector<std::pair<size_t, size_t>>& dynamic);
  Entry learn_size(PyObject* number, const std::vector<std::pair<size_t, size_t>>& dynamic);
  void learn_entries(PyObject* dict, const std::vector<std::pair<size_t, size_t>>& dynamic, Entry& entry);
  static bool match(const Entry& entry, PyObject* value, MatchedCall& call);
  static bool match_entries(const Entry& entry, PyObject* dict, MatchedCall& call);

  size_t leaf_count_ = 0;
  Entry root_;
};

}  // namespace ortmodule

// The module's tensors that a graph takes: found in the module's tables, and of the form that the graph was made for.
//
// A forward may ask a tensor for attributes that somebody has set on it. Those that had none when they were added must
// have none, nor one that takes another's place; the attributes of the others are watched elsewhere (watches.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <unordered_set>
#include <vector>

#include "bindings/calls/call_pattern.h"
#include "bindings/watching/watchers.h"

namespace ortmodule {

class ModuleTensors final : private Watcher {
 public:
  ModuleTensors() = default;
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;
  ~ModuleTensors();

  // The tensor that is table[key]; returns its number.
  size_t add(const pybind11::object& table, const pybind11::object& key);
  // Another tensor of the module, of which somebody else sees to that it stays and where: those that were added may be
  // the same tensor, and a forward may ask whether they are.
  void add_other(PyObject* tensor) { others_.push_back(tensor); }
  // After the last one.
  void settle();

  // Looks the tensors up again if their tables have changed; whether all are there, of a class that fits, none has got
  // attributes, and the same ones are one tensor as at first.
  bool find();
  // Those that had no attributes when they were added; before anything else.
  std::unordered_set<PyObject*> bare() const;
  // A tensor that was found; null: it does not match.
  const at::Tensor* read(size_t number) const { return tensors_[number].read(); }

  // For the collector of cycles; once cleared, nothing is found.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  // There are hundreds, and each call looks at all of them: what it reads lies together.
  struct alignas(64) One {
    PyObject* found = nullptr;  // not the tensor in it, which torch.utils.swap_tensors exchanges
    PyTypeObject* type;         // of `found`
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    uint8_t dimensions;  // kMany: `pattern` has the sizes
    bool bare;           // has no attributes of its own
    std::array<int64_t, 3> sizes{};
    mutable c10::DispatchKeySet keys;  // of one that matched: on the CPU they tell device, layout and kind
    struct Rest {
      pybind11::object table, key, found;  // the last is what `found` borrows
      pybind11::object attributes;         // the dict of those that it had at first, or null
      PyTypeObject* type;                  // at first
      TensorPattern pattern;
    };
    std::unique_ptr<Rest> rest;
    static constexpr uint8_t kMany = 255;

    One(const pybind11::object& table, const pybind11::object& key, PyObject* held, TensorPattern pattern);
    bool find();

    bool matches(const at::Tensor& t) const {
      if (dimensions == kMany) return rest->pattern.matches(t);
      const c10::DispatchKeySet keys_now = t.key_set();
      if (device.is_cpu() && keys_now == keys) {
        if (t.scalar_type() != dtype || wants_gradient(t) != requires_grad) return false;
      } else if (matches_but_for_sizes(t, dtype, device, requires_grad)) {
        keys = keys_now;
      } else {
        return false;
      }
      const auto now = t.sizes();
      if (now.size() != dimensions) return false;
      for (size_t i = 0; i < now.size(); ++i)
        if (now[i] != sizes[i]) return false;
      return true;
    }

    const at::Tensor* read() const {
      if (Py_TYPE(found) != type) return nullptr;
      const at::Tensor& tensor = THPVariable_Unpack(found);
      return matches(tensor) ? &tensor : nullptr;
    }
  };
  static_assert(sizeof(One) == 64);

  struct Table {
    PyObject* dict;
    uint64_t version;
  };

  void changed(size_t, bool) noexcept override { ++changes_; }
  void unwatch_all();
  bool are_as_found() const;
  bool find_all();
  std::vector<size_t> first_places() const;

  std::vector<One> tensors_;
  std::vector<PyObject*> others_;
  std::vector<size_t> first_places_;  // at first
  bool moved_ = false;                // another tensor since the places were last looked at
  std::vector<PyObject*> bare_;       // of what was found
  std::vector<Table> tables_;
  bool watched_ = true;            // all tables
  uint64_t changes_ = 0;           // that were told of
  uint64_t found_ = ~uint64_t{0};  // of them, before the tensors were last found
  bool cleared_ = false;
};

}  // namespace ortmodule

// What of Python's objects a steady call depends on: each watch says of one place what has to be there.
//
// The places come from the conditions of a graph (graph_transition/conditions). What CPython tells changes of
// (watchers.h) is compared when it has changed, the rest at each call. Not here: a call's arguments (call_pattern.h),
// the module's tensors (module_tensors.h).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/watching/watchers.h"

namespace ortmodule {

// Note [Versions of dicts]
// CPython up to 3.12 counts a dict's changes. While a dict's version is what it was when its entries were last
// compared, they are the same objects. From 3.13 on a change of an attribute does not always reach the version of the
// instance's dict, and the entries of a dict that cannot be watched are compared on every call.
constexpr uint64_t kNoVersion = 0;
uint64_t version_of(PyObject* dict);

// What changes with each change of a class or of its bases; kNoVersion where CPython does not count them any more.
uint64_t class_version(const pybind11::type& type);

class Watches final : private Watcher {
 public:
  Watches() = default;
  Watches(const Watches&) = delete;
  Watches& operator=(const Watches&) = delete;
  ~Watches();

  // One of
  //   ("entry", dict, key, value)         an entry of a dict
  //   ("names", dict, names, n, length)   n of a frozenset of names are keys; length of the dict, or -1 for any
  //   ("dict", dict, keys, values)        all entries, in this order
  //   ("order", dict, keys)               all keys, in this order
  //   ("length", dict, n)                 the number of entries
  //   ("bare", object)                    an object has no attributes of its own
  //   ("list", list, items)               all items
  //   ("set", set, items)                 all items, in the order in which a loop meets them
  //   ("type", object, class)             an object's class, and, where its `__dict__` is watched, that it has that one
  //   ("class", class)                    a class's members and bases, as they are at this moment
  //   ("function", function, code, defaults, keyword defaults)
  //   ("cell", cell, value)
  //   ("attribute", object, name, value)  getattr(object, name, missing)
  //   ("call", callable, result)          what callable() gives
  //   ("tensor", tensor)                  type, sizes, strides, offset, device and requires_grad, as they are now
  // Throws py::type_error for what cannot be watched.
  void add(const pybind11::tuple& watch);
  void set_missing(pybind11::object missing) { missing_ = std::move(missing); }
  // After the last one.
  void settle();

  // Whether everything is as it has to be. Python code may run.
  bool hold();

  // How many values have been compared so far.
  uint64_t compared() const { return compared_; }

  // For the collector of cycles; once cleared, nothing holds.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Entry {
    pybind11::object key, value;
  };
  struct Names {
    pybind11::object names;
    Py_ssize_t count, length;
  };
  struct Whole {
    pybind11::tuple keys, values;
  };
  struct Content {
    std::vector<Entry> entries;
    std::vector<Names> names;
    std::vector<Whole> whole;
    std::vector<pybind11::tuple> orders;
  };
  // What is watched of one dict; compared when the dict has changed.
  struct Dict {
    pybind11::object dict;
    Py_ssize_t length = -1;            // -1: any
    std::unique_ptr<Content> content;  // null: only the length counts
    uint64_t changes = 0, held = 0;    // that were told of; of them, before it was last found as it has to be
    bool watched = false;
    bool listed = false;  // in `changed_`
    bool keys = true;     // others may be there than when it was last found so
    bool hold() const;
    uint64_t size() const;
  };
  struct Version {
    PyObject* dict;
    uint64_t version;
    size_t index;  // in `dicts_`
  };
  struct Class {
    pybind11::object type, mro;
  };
  // An object, and, where the dict that it keeps its attributes in is watched, the place of that.
  struct Typed {
    PyObject* object;
    PyTypeObject* type;
    PyObject** place;
    PyObject* dict;
  };
  struct Function {
    pybind11::object function, code, defaults, keyword_defaults;
    bool hold() const;
  };
  struct Attribute {
    pybind11::object object, name, value;
  };
  using Pairs = std::vector<std::pair<pybind11::object, pybind11::object>>;
  struct Tensor;

  void changed(size_t what, bool keys) noexcept override;
  Dict& of(const pybind11::handle& dict);
  void add_to_dict(const std::string& kind, const pybind11::tuple& watch);
  void add_length(const pybind11::object& dict, Py_ssize_t length);
  void add_class(const pybind11::object& type);
  void add_object(const pybind11::object& object, PyTypeObject* type);
  void settle_lengths();
  void settle_places();
  void unwatch_all();
  bool types_hold();
  bool classes_hold();
  bool functions_hold();
  bool contents_hold();
  bool dicts_hold();
  bool changed_dicts_hold();
  bool answers_hold();

  std::unordered_map<PyObject*, size_t> place_;  // in `dicts_`
  std::unordered_set<PyObject*> known_;          // objects in `types_`
  std::unordered_set<PyObject*> bases_;          // classes whose members are watched
  std::vector<Dict> dicts_;
  std::vector<size_t> changed_;                            // of `dicts_`
  std::vector<Version> versions_;                          // of dicts that cannot be watched
  std::vector<PyObject*> empty_;                           // the same, that have to be empty
  std::vector<std::pair<PyObject*, Py_ssize_t>> lengths_;  // the same, where only the length counts
  std::vector<PyObject*> bare_;
  std::vector<pybind11::object> kept_;  // of `empty_`, `lengths_`, `types_` and `bare_`
  std::vector<Typed> types_;
  std::vector<Class> classes_;
  std::vector<Function> functions_;
  Pairs lists_, sets_, cells_, calls_;
  std::vector<Attribute> attributes_;
  std::vector<std::shared_ptr<Tensor>> tensors_;
  pybind11::object missing_;
  bool functions_watched_ = true;  // all of them
  bool functions_changed_ = true;
  bool cleared_ = false;
  uint64_t compared_ = 0;
};

}  // namespace ortmodule

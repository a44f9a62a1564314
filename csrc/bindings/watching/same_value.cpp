#include "bindings/watching/same_value.h"

#include <torch/csrc/Device.h>

#include <cstring>

namespace ortmodule {
namespace {

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool same_complex(PyObject* a, PyObject* b) {
  const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
  return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
}

bool same_tuples(PyObject* a, PyObject* b) {
  if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
    if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

// Goes through a set's members in the order in which a loop meets them. An item that was taken out leaves a key
// without a hash (-1; no member's hash is).
class Members {
 public:
  explicit Members(PyObject* set) : set_(reinterpret_cast<PySetObject*>(set)) {}

  PyObject* next() {
    while (at_ <= set_->mask) {
      const setentry& entry = set_->table[at_++];
      if (entry.key && entry.hash != -1) return entry.key;
    }
    return nullptr;
  }

 private:
  PySetObject* set_;
  Py_ssize_t at_ = 0;
};

bool same_sets(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
  Members of_a(a), of_b(b);
  while (PyObject* const item = of_a.next())
    if (!same_value(item, of_b.next())) return false;
  return true;
}

}  // namespace

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (PyComplex_CheckExact(a)) return same_complex(a, b);
  if (PyTuple_CheckExact(a)) return same_tuples(a, b);
  if (PyFrozenSet_CheckExact(a)) return same_sets(a, b);
  if (THPDevice_Check(a)) return reinterpret_cast<THPDevice*>(a)->device == reinterpret_cast<THPDevice*>(b)->device;
  if (!PyLong_CheckExact(a) && !PyUnicode_CheckExact(a) && !PyBytes_CheckExact(a)) return false;
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool same_members(PyObject* set, PyObject* items) {
  const Py_ssize_t size = PyTuple_GET_SIZE(items);
  if (PySet_GET_SIZE(set) != size) return false;
  Members members(set);
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!same_value(members.next(), PyTuple_GET_ITEM(items, i))) return false;
  return true;
}

}  // namespace ortmodule

#include "bindings/errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <stdexcept>

#include "base/limits.h"
#include "runtime/torch_error.h"

namespace ortmodule {
namespace {

const char* python_class(TypedError::Type type) {
  switch (type) {
    case TypedError::Type::kIndex:
      return "IndexOutOfRangeError";
    case TypedError::Type::kNotImplemented:
      return "OperatorNotImplementedError";
    case TypedError::Type::kLinearAlgebra:
      return "LinearAlgebraError";
    case TypedError::Type::kOutOfMemory:
      return "OutOfMemoryError";
  }
  return "ORTModuleError";
}

const char* python_class(const Error& error) {
  if (const auto* typed = dynamic_cast<const TypedError*>(&error)) return python_class(typed->type());
  if (dynamic_cast<const LimitError*>(&error)) return "LimitError";
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kInvalidGraph:
    case ErrorCode::kParse:
      return "InvalidGraphError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kTerminated:
      return "TerminatedError";
    case ErrorCode::kInternal:
      return "InternalError";
    default:
      return "ORTModuleError";
  }
}

// What libraries throw: users still catch one type.
void set_error(const char* what, const char* name = "ORTModuleError") {
  const auto type = pybind11::module_::import("ortmodule.errors").attr(name);
  PyErr_SetString(type.ptr(), what);
}

}  // namespace

void register_errors(pybind11::module_&) {
  pybind11::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& e) {
      const auto type = pybind11::module_::import("ortmodule.errors").attr(python_class(e));
      // A broken file may have put bytes into the message that are no UTF-8.
      const std::string text = e.what();
      const auto message = pybind11::reinterpret_steal<pybind11::object>(
          PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
      PyErr_SetObject(type.ptr(), message.ptr());
    } catch (python_error& e) {  // raised by Python code that an operator called
      e.restore();
    } catch (const pybind11::builtin_exception&) {
      throw;  // pybind11 knows which Python error it stands for
    } catch (const c10::Error& e) {
      const auto type = type_of(e);
      set_error(e.what_without_backtrace(), type ? python_class(*type) : "ORTModuleError");
    } catch (const std::runtime_error& e) {
      set_error(e.what());
    } catch (const std::logic_error& e) {
      set_error(e.what());
    } catch (const pybind11::error_already_set&) {
      throw;
    } catch (const std::exception& e) {  // a library's own kind, as oneDNN's
      set_error(e.what());
    }
  });
}

}  // namespace ortmodule

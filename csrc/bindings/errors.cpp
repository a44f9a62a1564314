#include "bindings/errors.h"

#include <torch/csrc/Exceptions.h>

#include "base/status.h"

namespace ortmodule {
namespace {

const char* python_class(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorCode::kInvalidGraph:
    case ErrorCode::kParse:
      return "InvalidGraphError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    case ErrorCode::kInternal:
      return "InternalError";
    default:
      return "ORTModuleError";
  }
}

}  // namespace

void register_errors(pybind11::module_&) {
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& e) {
      const auto type = pybind11::module_::import("ortmodule.errors").attr(python_class(e.code()));
      // A broken file may have put bytes into the message that are no UTF-8.
      const std::string text = e.what();
      const auto message = pybind11::reinterpret_steal<pybind11::object>(
          PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
      PyErr_SetObject(type.ptr(), message.ptr());
    } catch (python_error& e) {  // raised by Python code that an operator called
      e.restore();
    }
  });
}

}  // namespace ortmodule

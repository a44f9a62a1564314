// What ortmodule.sessions.InferenceSession runs: feeds by name to values, results to arrays.
//
// Arrays and tensors that the engine takes as they are pass here; the rest (types that NumPy or torch lacks, lists,
// numbers, other strides) goes through converters in Python.
#include "bindings/inference/python_inference.h"

#include <ATen/dlpack.h>
#include <ATen/ops/from_blob.h>
#include <pybind11/numpy.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/tensor_numpy.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/container_type.h"
#include "base/status.h"
#include "bindings/session_settings.h"
#include "bindings/values.h"
#include "kernels/aten_bridge.h"
#include "kernels/sequence_value.h"
#include "onnx/model_file.h"
#include "ortmodule/inference_session.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// Types that torch and NumPy both have; elements of the others are codes in bytes.
bool is_plain(DType dtype) {
  if (is_container(dtype) || dtype == DType::kUndefined) return false;
  const at::ScalarType type = to_scalar_type(dtype);
  return to_dtype(type) == dtype && !c10::isFloat8Type(type) && type != at::kBFloat16;
}

struct Value {
  py::str name;
  DType dtype;
  bool plain;
};

std::vector<Value> values_of(const std::vector<DeclaredValue>& declared) {
  std::vector<Value> values;
  for (const DeclaredValue& value : declared) {
    PyObject* name = PyUnicode_FromStringAndSize(value.name.data(), static_cast<Py_ssize_t>(value.name.size()));
    if (!name) throw py::error_already_set();
    PyUnicode_InternInPlace(&name);
    values.push_back({py::reinterpret_steal<py::str>(name), value.dtype, is_plain(value.dtype)});
  }
  return values;
}

class Inference {
 public:
  // read(place, value): what the engine takes for an input; write(place, value): what the caller gets of an output.
  Inference(std::shared_ptr<Session> session, py::object read, py::object write)
      : session_(std::move(session)),
        read_(std::move(read)),
        write_(std::move(write)),
        inputs_(values_of(session_->compiled().info.inputs)),
        outputs_(values_of(session_->compiled().info.outputs)) {}

  // The outputs at the places `wanted` (None: all), as arrays.
  py::list run(const py::dict& feeds, const std::optional<std::vector<size_t>>& wanted, const RunStop* stop) const {
    std::vector<at::Tensor> held = read_feeds(feeds);
    const std::vector<at::Tensor> results = infer(held, wanted, stop);
    py::list out;
    for (size_t i = 0; i < results.size(); ++i) out.append(write(wanted ? (*wanted)[i] : i, results[i]));
    return out;
  }

  // The same for values as they are: tensors, lists, None.
  py::list run_values(const py::sequence& values, const std::optional<std::vector<size_t>>& wanted,
                      const RunStop* stop) const {
    return write_values(infer(read_inputs(values), wanted, stop));
  }

  // The outputs at the places `wanted`, those that have a buffer (None: none) in it; and which were copied there.
  py::tuple run_bound(const py::sequence& values, const std::vector<size_t>& wanted, const py::sequence& buffers,
                      const RunStop* stop, bool whole) const {
    std::vector<at::Tensor> held = read_inputs(values);
    ResultBuffers results;
    for (const py::handle& buffer : buffers)
      results.buffers.push_back(buffer.is_none() ? at::Tensor() : buffer.cast<at::Tensor>());
    ORTMODULE_INTERNAL(results.buffers.size() == wanted.size(), "one buffer per output");
    std::vector<at::Tensor> outputs;
    {
      const py::gil_scoped_release release;
      outputs = session_->infer_places(held, wanted, stop, whole, &results);
    }
    return py::make_tuple(write_values(outputs), std::vector<bool>(results.copied.begin(), results.copied.end()));
  }

 private:
  std::vector<at::Tensor> read_inputs(const py::sequence& values) const {
    ORTMODULE_CHECK_ARG(py::len(values) == inputs_.size(), "the model has ", inputs_.size(), " inputs, got ",
                        py::len(values));
    std::vector<at::Tensor> held;
    for (size_t i = 0; i < inputs_.size(); ++i) held.push_back(read_value(values[i], inputs_[i].dtype));
    return held;
  }

  // `held` stays with the caller: kernels overwrite what nobody else has.
  std::vector<at::Tensor> infer(const std::vector<at::Tensor>& held, const std::optional<std::vector<size_t>>& wanted,
                                const RunStop* stop) const {
    const py::gil_scoped_release release;
    if (wanted) return session_->infer_places(held, *wanted, stop);
    std::vector<at::Tensor> inputs = held;
    return session_->infer(std::move(inputs), {}, stop);
  }

  std::vector<at::Tensor> read_feeds(const py::dict& feeds) const {
    std::vector<at::Tensor> values;
    values.reserve(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      PyObject* const given = PyDict_GetItemWithError(feeds.ptr(), inputs_[i].name.ptr());
      if (!given) fail_in_names(feeds);
      values.push_back(read(i, given));
    }
    if (static_cast<size_t>(PyDict_GET_SIZE(feeds.ptr())) != inputs_.size()) fail_in_names(feeds);
    return values;
  }

  [[noreturn]] void fail_in_names(const py::dict& feeds) const {
    if (PyErr_Occurred()) throw py::error_already_set();
    py::list names, missing, unknown;
    for (const Value& input : inputs_) {
      names.append(input.name);
      if (!feeds.contains(input.name)) missing.append(input.name);
    }
    for (const auto& [name, value] : feeds)
      if (!names.contains(name)) unknown.append(name);
    fail(ErrorCode::kInvalidArgument, "the inputs are ", std::string(py::repr(names)),
         "; missing: ", std::string(py::repr(missing)), ", unknown: ", std::string(py::repr(unknown)));
  }

  at::Tensor read(size_t i, PyObject* given) const {
    const Value& input = inputs_[i];
    const bool on_host = session_->device().is_cpu();
    if (input.plain && THPVariable_Check(given)) {
      const at::Tensor& tensor = THPVariable_Unpack(given);
      if (tensor.device() == session_->device()) return tensor;
    } else if (input.plain && on_host && py::isinstance<py::array>(given)) {
      if (at::Tensor taken = taken_array(given, input.dtype); taken.defined()) return taken;
    }
    return read_value(read_(i, py::handle(given)), input.dtype);
  }

  // The array's own memory; undefined where it is no plain array of the type.
  static at::Tensor taken_array(PyObject* array, DType dtype) {
    const auto* const held = py::detail::array_proxy(array);
    const auto* const descriptor = py::detail::array_descriptor_proxy(held->descr);
    if (descriptor->type_num != torch::utils::aten_to_numpy_dtype(to_scalar_type(dtype))) return {};
    constexpr int kNeeded = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
    if ((held->flags & kNeeded) != kNeeded || descriptor->byteorder == '>') return {};
    return torch::utils::tensor_from_numpy(array, false);
  }

  py::object write(size_t place, const at::Tensor& result) const {
    if (!outputs_[place].plain || !result.defined() || !result.is_cpu()) return write_(place, write_value(result));
    constexpr int64_t kMostAxes = 64;  // of an array; older versions of NumPy have 32
    ORTMODULE_CHECK(result.dim() <= kMostAxes, kUnsupported, "the output '", std::string(outputs_[place].name),
                    "' has ", result.dim(), " axes, more than an array can have: take it as an OrtValue");
    PyObject* const array = torch::utils::tensor_to_numpy(result);
    if (!array) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(array);
  }

  std::shared_ptr<Session> session_;
  py::object read_, write_;
  std::vector<Value> inputs_, outputs_;
};

py::dict described(const DeclaredValue& value) {
  py::object shape = py::none();
  if (value.has_shape) {
    py::list sizes;
    for (const DeclaredSize& size : value.shape) {
      if (size.number >= 0)
        sizes.append(size.number);
      else
        sizes.append(size.symbol.empty() ? py::object(py::none()) : py::object(py::str(size.symbol)));
    }
    shape = std::move(sizes);
  }
  py::dict out;
  out["name"] = value.name;
  out["type"] = value.type;
  out["shape"] = shape;
  out["element"] = static_cast<int>(element_of(value.dtype));
  out["is_sequence"] = is_sequence(value.dtype);
  out["is_optional"] = is_optional(value.dtype);
  return out;
}

py::dict info_of(const Session& session) {
  const ModelInfo& info = session.compiled().info;
  py::dict out;
  for (const auto& [key, values] :
       {std::pair{"inputs", &info.inputs}, {"outputs", &info.outputs}, {"overridable", &info.overridable}}) {
    py::list list;
    for (const DeclaredValue& value : *values) list.append(described(value));
    out[key] = list;
  }
  out["producer_name"] = info.producer_name;
  out["graph_name"] = info.graph_name;
  out["domain"] = info.domain;
  out["description"] = info.description;
  out["graph_description"] = info.graph_description;
  out["version"] = info.version;
  out["follows_training_mode"] = info.follows_training_mode;
  py::dict custom;
  for (const auto& [key, value] : info.custom_metadata) custom[py::str(key)] = value;
  out["custom_metadata"] = custom;
  return out;
}

at::Tensor tensor_at(uintptr_t address, const std::vector<int64_t>& shape, const py::object& dtype,
                     const std::string& device) {
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  return at::from_blob(reinterpret_cast<void*>(address), shape, at::TensorOptions(type).device(c10::Device(device)));
}

// Whether a capsule's memory may not be written; torch takes such a capsule as any other, and of a later version too.
bool capsule_is_read_only(const py::object& capsule) {
  constexpr const char *kOld = "dltensor", *kVersioned = "dltensor_versioned";
  const bool versioned = PyCapsule_IsValid(capsule.ptr(), kVersioned) != 0;
  ORTMODULE_CHECK_ARG(versioned || PyCapsule_IsValid(capsule.ptr(), kOld),
                      "this is no DLPack capsule, or one that was ", "taken before");
  if (!versioned) return false;
  const auto* managed = static_cast<const DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersioned));
  ORTMODULE_CHECK_ARG(managed->version.major == DLPACK_MAJOR_VERSION, "the DLPack capsule is of version ",
                      managed->version.major, ".", managed->version.minor, "; version ", DLPACK_MAJOR_VERSION,
                      " is supported");
  return (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
}

py::list events_of(RunTrace& trace) {
  py::list out;
  for (const RunTrace::Event& event : trace.take())
    out.append(py::make_tuple(event.name, event.op, event.provider, event.thread, event.begin, event.seconds));
  return out;
}

std::shared_ptr<Session> load_session(const std::string& path, const py::dict& options) {
  SessionSettings read = read_options("inference", {}, options);
  const py::gil_scoped_release release;
  const ModelFile file = open_model(path);
  read.import.external_data_dir = file.folder;
  return std::make_shared<Session>(*file.bytes, std::move(read));
}

}  // namespace

void register_inference(py::module_& m) {
  py::class_<RunStop>(m, "RunStop", "Ends runs before their end, from another thread.")
      .def(py::init<>())
      .def("ask", &RunStop::ask)
      .def("take_back", &RunStop::take_back)
      .def_property_readonly("asked", &RunStop::asked);
  py::class_<RunTrace, std::shared_ptr<RunTrace>>(m, "RunTrace", "When the steps of runs ran.")
      .def(py::init<>())
      .def("take", &events_of,
           "(name, operator, provider, thread, begin, seconds) of each step, and of each run (without an operator), "
           "since this was last asked.");
  m.def(
      "trace_runs", [](Session& session, std::shared_ptr<RunTrace> trace) { session.trace(std::move(trace)); },
      py::arg("session"), py::arg("trace"), "Notes when the steps of later runs for inference run; None: no more.");
  py::class_<Inference>(m, "Inference", "The runs of a session that only infers.")
      .def(py::init<std::shared_ptr<Session>, py::object, py::object>(), py::arg("session"), py::arg("read"),
           py::arg("write"))
      .def("run", &Inference::run, py::arg("feeds"), py::arg("wanted"), py::arg("stop"),
           "Arrays of the outputs at the places `wanted` (None: all) for arrays or tensors by name.")
      .def("run_values", &Inference::run_values, py::arg("values"), py::arg("wanted"), py::arg("stop"),
           "The same for one value per input, as the engine has them.")
      .def("run_bound", &Inference::run_bound, py::arg("values"), py::arg("wanted"), py::arg("buffers"),
           py::arg("stop"), py::arg("whole"),
           "The outputs at the places `wanted`, in their buffers (None: none), and which were copied there; `whole`: "
           "all outputs are computed.");
  m.def("tensor_at", &tensor_at, py::arg("address"), py::arg("shape"), py::arg("dtype"), py::arg("device"),
        "A tensor of memory that somebody else keeps.");
  m.def("capsule_is_read_only", &capsule_is_read_only, py::arg("capsule"),
        "Whether the memory of a DLPack capsule that nobody has taken may not be written.");
  m.def("load_session", &load_session, py::arg("path"), py::arg("options"),
        "A session for inference of the model in a file; its external data lies beside it.");
  m.def("set_global_inter_op_threads", &set_global_inter_op_threads, py::arg("threads"), py::arg("allow_spinning"),
        py::call_guard<py::gil_scoped_release>(), "The process's threads for nodes that run side by side.");
  m.def("model_info", &info_of, py::arg("session"), "What the session's model says of itself.");
}

}  // namespace ortmodule

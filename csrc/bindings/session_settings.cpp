#include "bindings/session_settings.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/status.h"
#include "bindings/passes/python_pass.h"
#include "kernels/aten_bridge.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

PassLevel parse_level(const std::string& name) {
  if (name == "required") return PassLevel::kRequired;
  if (name == "basic") return PassLevel::kBasic;
  ORTMODULE_CHECK_ARG(name == "extended", "the level should be 'required', 'basic' or 'extended', got '", name, "'");
  return PassLevel::kExtended;
}

// Options of sessions that only infer; false: `name` is none of these.
bool read_inference_option(const std::string& name, const py::handle& value, SessionSettings& out) {
  if (name == "threads")
    out.threads = value.cast<int>();
  else if (name == "parallel")
    out.parallel = value.cast<bool>();
  else if (name == "inter_op_threads")
    out.inter_op_threads = value.cast<int>();
  else if (name == "own_pool")
    out.own_pool = value.cast<bool>();
  else if (name == "deterministic")
    out.deterministic = value.cast<bool>();
  else if (name == "spin")
    out.spin = value.cast<bool>();
  else if (name == "free_dimensions")
    out.import.sizes = value.cast<std::map<std::string, int64_t>>();
  else if (name == "free_dimensions_by_denotation")
    out.import.sizes_by_denotation = value.cast<std::map<std::string, int64_t>>();
  else if (name == "training_mode")
    out.import.training_mode = value.cast<bool>();
  else if (name == "fed")
    out.import.fed = value.cast<std::set<std::string>>();
  else if (name == "initializers")
    for (const auto& [initializer, tensor] : value.cast<std::map<std::string, at::Tensor>>())
      out.import.initializers.emplace(initializer, shared_data_from(tensor));
  else
    return false;
  return true;
}

Limits parse_limits(const py::dict& given) {
  Limits out;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "tensor_bytes")
      out.tensor_bytes = value.cast<uint64_t>();
    else if (name == "nodes")
      out.nodes = value.cast<size_t>();
    else if (name == "nesting")
      out.nesting = value.cast<size_t>();
    else if (name == "run_bytes")
      out.run_bytes = value.cast<uint64_t>();
    else if (name == "seconds")
      out.seconds = value.cast<double>();
    else
      fail(ErrorCode::kInvalidArgument, "unknown limit '", name, "'");
  }
  return out;
}

}  // namespace

SessionSettings read_options(const std::string& mode, const std::vector<std::string>& trainable,
                             const py::dict& options) {
  SessionSettings out;
  ORTMODULE_CHECK_ARG(mode == "training" || mode == "inference", "mode should be 'training' or 'inference', got '",
                      mode, "'");
  out.training = mode == "training";
  out.trainable = trainable;
  for (const auto& [key, value] : options) {
    const auto name = key.cast<std::string>();
    if (name == "device")
      out.device = c10::Device(value.cast<std::string>());
    else if (name == "dropout")
      out.dropout = value.cast<std::string>();
    else if (name == "whole_masks")
      out.whole_masks = value.cast<bool>();
    else if (name == "matmul")
      out.matmul = value.cast<std::string>();
    else if (name == "memory_budget")
      out.memory_budget = value.is_none() ? std::nullopt : std::optional<double>(value.cast<double>());
    else if (name == "fusion")
      out.fusion = value.cast<bool>();
    else if (name == "weights")
      out.weights = value.cast<std::vector<std::string>>();
    else if (name == "sizes")
      out.sizes = value.cast<SymbolTable>();
    else if (name == "mutations")
      out.mutations = value.cast<Session::Mutations>();
    else if (name == "keep_stages")
      out.keep_stages = value.cast<bool>();
    else if (name == "keep_history")
      out.keep_history = value.cast<bool>();
    else if (name == "verify")
      out.verify = value.cast<bool>();
    else if (name == "order")
      out.order = parse_order(value.cast<std::string>());
    else if (name == "level")
      out.level = parse_level(value.cast<std::string>());
    else if (read_inference_option(name, value, out))
      continue;
    else if (name == "limits")
      out.import.limits = parse_limits(value.cast<py::dict>());
    else if (name == "aten_operators")
      out.import.aten_operators = value.cast<bool>();
    else if (name == "weights_folder")
      out.import.weights_folder = value.cast<std::string>();
    else if (name == "external_data_root")
      out.import.external_data_root = value.cast<std::string>();
    else if (name == "memory_pattern")
      out.memory_pattern = value.cast<bool>();
    else if (name == "memory_reuse")
      out.memory_reuse = value.cast<bool>();
    else if (name == "providers")
      for (const auto& [provider, settings] :
           value.cast<std::vector<std::pair<std::string, std::map<std::string, std::string>>>>())
        out.providers.push_back({provider, settings});
    else if (name == "passes")
      out.passes.added = python_passes(value.cast<py::list>());
    else if (name == "disabled_passes")
      out.passes.disabled = value.cast<std::vector<std::string>>();
    else
      fail(ErrorCode::kInvalidArgument, "unknown session option '", name, "'");
  }
  return out;
}

}  // namespace ortmodule

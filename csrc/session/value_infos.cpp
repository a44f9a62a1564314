#include "session/value_infos.h"

#include <exception>

#include "base/status.h"

namespace ortmodule {
namespace {

// Passes may have renamed an output's value.
std::vector<ValueInfo> infos_of(const std::vector<NodeArg*>& values, const std::vector<std::string>& names) {
  std::vector<ValueInfo> infos;
  for (size_t i = 0; i < names.size(); ++i) {
    const TypeInfo& type = values[i]->type();
    ValueInfo info{names[i], std::string(dtype_name(type.dtype))};
    info.has_rank = type.shape.has_value();
    if (info.has_rank)
      for (const Dim& size : *type.shape) info.shape.push_back(size.is_known() ? size.value() : -1);
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace

c10::Device parse_device(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const std::exception&) {
    fail(ErrorCode::kInvalidArgument, "the device '", name, "' is none that torch knows");
  }
}

std::vector<ValueInfo> input_infos(const Session& session) {
  const CompiledModel& compiled = session.compiled();
  return infos_of(compiled.graph->inputs(), compiled.input_names);
}

std::vector<ValueInfo> output_infos(const Session& session) {
  const CompiledModel& compiled = session.compiled();
  return infos_of(compiled.graph->outputs(), compiled.output_names);
}

}  // namespace ortmodule

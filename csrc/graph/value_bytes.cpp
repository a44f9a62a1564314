#include "graph/value_bytes.h"

#include <string>
#include <vector>

#include "base/container_type.h"

namespace ortmodule {

std::optional<int64_t> known_bytes(const TypeInfo& type, const SymbolTable& sizes) {
  if (!type.shape || is_container(type.dtype)) return std::nullopt;
  auto bytes = static_cast<int64_t>(dtype_size(type.dtype));
  for (const Dim& dim : *type.shape) {
    std::vector<std::string> names;
    dim.collect_symbols(names);
    for (const std::string& name : names)
      if (!sizes.count(name)) return std::nullopt;
    bytes *= dim.evaluate(sizes);
  }
  return bytes;
}

double estimated_bytes(const TypeInfo& type, const SymbolTable& sizes, int64_t unknown) {
  if (!type.shape) return 0;
  SymbolTable known = sizes;
  auto bytes = static_cast<double>(dtype_size(type.dtype));
  for (const Dim& dim : *type.shape) {
    std::vector<std::string> names;
    dim.collect_symbols(names);
    for (const std::string& name : names) known.try_emplace(name, unknown);
    bytes *= static_cast<double>(dim.evaluate(known));
  }
  return bytes;
}

}  // namespace ortmodule

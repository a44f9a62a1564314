#include "base/container_type.h"

#include <map>
#include <string>

namespace ortmodule {
namespace {

constexpr int32_t kElementBound = 64;  // above every element type

const std::map<DType, std::string>& names() {
  static const std::map<DType, std::string> table = [] {
    std::map<DType, std::string> made;
    for (int32_t i = 0; i < kElementBound; ++i) {
      const auto element = static_cast<DType>(i);
      const std::string name(dtype_name(element));
      if (i != 0 && name == "undefined") continue;
      made[sequence_of(element)] = "sequence_" + name;
      made[optional_of(element)] = "optional_" + name;
      made[optional_of(sequence_of(element))] = "optional_sequence_" + name;
    }
    return made;
  }();
  return table;
}

}  // namespace

DType join_types(DType a, DType b) {
  if (a == b || b == DType::kUndefined) return a;
  if (a == DType::kUndefined) return b;
  return content_of(a) == content_of(b) ? optional_of(a) : DType::kUndefined;
}

std::string_view container_name(DType dtype) {
  const auto it = names().find(dtype);
  return it == names().end() ? std::string_view("undefined") : std::string_view(it->second);
}

DType container_from_name(std::string_view name) {
  for (const auto& [dtype, text] : names())
    if (text == name) return dtype;
  return DType::kUndefined;
}

}  // namespace ortmodule

// A node as a range of torch's profiler, and of NVTX where that is written, while one looks on.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "graph/graph.h"

namespace ortmodule {

// What the range of `node` is called.
inline std::string range_name(const Node& node) {
  return node.name().empty() ? node.qualified_op() : str(node.qualified_op(), " ", node.name());
}

class ProfilerRange {
 public:
  // `name()` gives a text that lives as long as the range; nobody asks for it where nobody looks on.
  template <class Name>
  ProfilerRange(bool looked_at, const Name& name) {
    if (looked_at) [[unlikely]]
      begin(name());
  }

 private:
  [[gnu::noinline]] void begin(const std::string& name) {
    range_.emplace(at::RecordScope::USER_SCOPE);
    if (range_->isActive()) range_->before(std::string_view(name));
  }

  std::optional<at::RecordFunction> range_;
};

}  // namespace ortmodule

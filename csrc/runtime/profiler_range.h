// A node as a range of torch's profiler, and of NVTX where that is written, while one looks on.
#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "base/status.h"
#include "graph/graph.h"

namespace ortmodule {

class ProfilerRange {
 public:
  ProfilerRange(bool looked_at, const Node& node) {
    if (looked_at) [[unlikely]]
      begin(node);
  }

 private:
  [[gnu::noinline]] void begin(const Node& node) {
    range_.emplace(at::RecordScope::USER_SCOPE);
    if (range_->isActive())
      range_->before(node.name().empty() ? node.qualified_op() : str(node.qualified_op(), " ", node.name()));
  }

  std::optional<at::RecordFunction> range_;
};

}  // namespace ortmodule

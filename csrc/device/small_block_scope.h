// Lets this thread's allocations on the CPU be served from small blocks (base/small_blocks.h).
#pragma once

#include "base/small_blocks.h"

namespace ortmodule {

class SmallBlockScope {
 public:
  explicit SmallBlockScope(bool on);
  ~SmallBlockScope();
  SmallBlockScope(const SmallBlockScope&) = delete;
  SmallBlockScope& operator=(const SmallBlockScope&) = delete;

 private:
  const bool on_;
  bool before_ = false;
};

}  // namespace ortmodule

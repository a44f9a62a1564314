// What a model that libFuzzer has made may take.
#pragma once

#include "base/limits.h"

namespace ortmodule {

inline Limits fuzz_limits() {
  Limits out;
  out.tensor_bytes = 16 << 20;
  out.nodes = 2000;
  out.nesting = 8;
  out.seconds = 2;
  return out;
}

}  // namespace ortmodule

// What the public classes that train take in common, as settings of a session: GraphOptions, TrainingSessionOptions.
#pragma once

#include "base/status.h"
#include "session/session.h"
#include "session/value_infos.h"

namespace ortmodule {

// Throws kInvalidArgument for a device or a kind of dropout that is none.
template <typename Options>
SessionSettings engine_settings(const Options& options) {
  ORTMODULE_CHECK_ARG(options.dropout == "fast" || options.dropout == "torch",
                      "dropout should be 'fast' or 'torch', got '", options.dropout, "'");
  SessionSettings out;
  out.device = parse_device(options.device);
  out.dropout = options.dropout;
  out.matmul = options.matmul;
  out.memory_budget = options.memory_budget;
  out.fusion = options.fusion;
  out.import.aten_operators = options.allow_aten_operators;
  return out;
}

}  // namespace ortmodule

// What a GraphFunction holds, for the classes that run its halves themselves.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ortmodule/graph_function.h"
#include "session/session.h"
#include "session/value_infos.h"

namespace ortmodule {

struct GraphFunction::State {
  State(std::string_view model, const SessionSettings& options)
      : session(model, options), trainable(options.trainable) {
    inputs = input_infos(session);
    outputs = output_infos(session);
    for (const std::string& name : options.trainable)
      ORTMODULE_CHECK_ARG(has(name), "the trainable '", name, "' is no input of the graph");
  }

  bool has(const std::string& input) const {
    return std::any_of(inputs.begin(), inputs.end(), [&](const ValueInfo& info) { return info.name == input; });
  }

  Session session;
  std::vector<ValueInfo> inputs, outputs;
  std::vector<std::string> trainable;  // as they were asked for
};

}  // namespace ortmodule

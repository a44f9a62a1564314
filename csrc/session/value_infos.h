// What the public classes share.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "ortmodule/value_info.h"
#include "session/session.h"

namespace ortmodule {

// A device that torch knows by this name; kInvalidArgument for another.
c10::Device parse_device(const std::string& name);

// Of the session's inputs and outputs, in the graph's order.
std::vector<ValueInfo> input_infos(const Session& session);
std::vector<ValueInfo> output_infos(const Session& session);

}  // namespace ortmodule

// A model that holds its weights: what is left of training for those who only infer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/attribute.h"

namespace ortmodule {

// Writes `model` to `path` with each of `weights` in place of the graph input of that name, and with the outputs of
// those names alone (none: all), in their order; what these do not need is left out. From `external_from` bytes of
// weights on they lie in a file beside it, `<path>.data`. Files are put in place whole or not at all.
// Throws kInvalidArgument for a name that the graph does not have, kRuntime where the system does not write.
void write_inference_model(std::string_view model, const std::map<std::string, TensorData>& weights,
                           const std::vector<std::string>& outputs, const std::string& path,
                           uint64_t external_from = uint64_t{1} << 30);

}  // namespace ortmodule

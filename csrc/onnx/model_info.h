// What a model says of itself: its inputs and outputs as they are declared, and who made it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace ortmodule {

struct DeclaredSize {
  int64_t number = -1;   // -1: not known
  std::string symbol{};  // of one that has only a name
};

struct DeclaredValue {
  std::string name;
  std::string type;  // as the standard writes types: "tensor(float)", "seq(tensor(int64))", "optional(tensor(float))"
  DType dtype = DType::kUndefined;
  bool has_shape = false;
  std::vector<DeclaredSize> shape{};
};

struct ModelInfo {
  std::vector<DeclaredValue> inputs, outputs;  // inputs without those that have a value in the model
  std::vector<DeclaredValue> overridable;      // these
  std::string producer_name{}, graph_name{}, domain{}, description{}, graph_description{};
  int64_t version = 0;
  bool follows_training_mode = false;  // transforms/training_mode.h
  std::map<std::string, std::string> custom_metadata{};
};

}  // namespace ortmodule

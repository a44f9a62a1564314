// Whether a node moves torch's generator on, as the operator does that it stands for.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "records/registry.h"

namespace ortmodule {

inline bool is_dropout(const Node& node) {
  const std::string op = node.qualified_op();
  return op == "Dropout" || op == "ai.ortmodule::AttentionDropout";
}

// What is drawn after such a node hangs on it, so that it runs although nobody may want its results. A seed of its own
// is a stream of its own, a RandomState is drawn for those that read it, and an operator of ATen's of which nothing is
// known is not taken to draw.
inline bool draws(const Node& node) {
  const OpRecord* record = node.record();
  if (!record || !record->has(kRandom) || record->has(kOpaque) || node.find_attribute("seed")) return false;
  if (node.qualified_op() == "ai.ortmodule::RandomState") return false;
  if (node.qualified_op() != "Dropout") return true;
  const NodeArg* mode = node.input(2);
  return mode && !(mode->constant() && mode->constant()->to_ints() == std::vector<int64_t>{0});
}

}  // namespace ortmodule

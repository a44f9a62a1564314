// Whose memory each result is, as the model has it: what passes have merged is told apart by that (Note [Results]).
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

using ResultOwners = std::unordered_map<std::string, size_t>;

// By a graph output's name a number, equal for those that are one memory in eager. A captured model says so itself, in
// its metadata ("result_memory": lines of a number and a name; what has no line shares with nobody), where it is taken
// away. For others it is which value they are views of, before any pass.
ResultOwners take_result_owners(Graph& graph);

// The numbers of these outputs, in their order; what a pass has added shares with nobody.
std::vector<size_t> owners_of(const std::vector<std::string>& outputs, const ResultOwners& owners);

}  // namespace ortmodule

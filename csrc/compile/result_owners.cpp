#include "compile/result_owners.h"

#include <cstdint>
#include <sstream>
#include <unordered_map>

#include "records/registry.h"

namespace ortmodule {
namespace {

constexpr const char* kKey = "result_memory";

const NodeArg* whose_memory(const NodeArg* value) {
  for (const Node* node = value->producer(); node && node->record() && node->record()->shares_memory(*node);
       node = value->producer())
    value = node->input(0);
  return value;
}

}  // namespace

ResultOwners take_result_owners(Graph& graph) {
  ResultOwners owners;
  if (const auto it = graph.metadata().find(kKey); it != graph.metadata().end()) {
    std::istringstream lines(it->second);
    std::string output;
    for (size_t owner; lines >> owner && std::getline(lines >> std::ws, output);) owners.emplace(output, owner);
    size_t apart = SIZE_MAX;  // what was added since (a gradient)
    for (const NodeArg* one : graph.outputs())
      if (owners.emplace(one->name(), apart).second) --apart;
    graph.metadata().erase(it);
    return owners;
  }
  std::unordered_map<const NodeArg*, size_t> numbers;
  for (const NodeArg* output : graph.outputs())
    owners.emplace(output->name(), numbers.try_emplace(whose_memory(output), numbers.size()).first->second);
  return owners;
}

std::vector<size_t> owners_of(const std::vector<std::string>& outputs, const ResultOwners& owners) {
  std::vector<size_t> found;
  size_t apart = SIZE_MAX / 2;
  for (const std::string& output : outputs) {
    const auto it = owners.find(output);
    found.push_back(it == owners.end() ? apart-- : it->second);
  }
  return found;
}

}  // namespace ortmodule

#include "runtime/step_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "graph/value_bytes.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// By the values of each list once; negative: one is not known.
double bytes_of(const std::vector<NodeArg*>& values, const SymbolTable& sizes) {
  double sum = 0;
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (!*value || std::find(values.begin(), value, *value) != value) continue;
    const std::optional<int64_t> bytes = known_bytes((*value)->type(), sizes);
    if (!bytes) return -1;
    sum += static_cast<double>(*bytes);
  }
  return sum;
}

// Whether output 0 may have input 0's memory: as MemoryForecast has it.
bool may_share(const Node& node, const SymbolTable& sizes) {
  const OpRecord* record = node.record();
  const NodeArg *source = node.input(0), *value = node.output(0);
  if (!record || !source || !value || !(record->has(kView) || record->has(kIdentity))) return false;
  if (source->type().dtype != value->type().dtype) return false;
  return !record->has(kReduction) || known_bytes(source->type(), sizes) == known_bytes(value->type(), sizes);
}

bool has_shapes(const std::vector<NodeArg*>& values) {
  return std::all_of(values.begin(), values.end(), [](const NodeArg* v) { return !v || v->type().shape; });
}

double flops_of(const Node& node, const SymbolTable& sizes) {
  const FlopsFn count = node.record() ? node.record()->flops_fn() : nullptr;
  if (!count || !has_shapes(node.inputs()) || !has_shapes(node.outputs())) return -1;
  bool known = true;  // each size that the formula asks for
  const double flops = count(node, [&](const Dim& dim) {
    std::vector<std::string> names;
    dim.collect_symbols(names);
    for (const std::string& name : names) known = known && sizes.count(name);
    return known ? static_cast<double>(dim.evaluate(sizes)) : 0;
  });
  return known && std::isfinite(flops) ? flops : -1;
}

}  // namespace

StepCost cost_of(const Node& node, const SymbolTable& sizes) {
  StepCost cost;
  const double in = bytes_of(node.inputs(), sizes), out = bytes_of(node.outputs(), sizes);
  if (in >= 0 && out >= 0 && !may_share(node, sizes)) cost.bytes = in + out;
  cost.flops = flops_of(node, sizes);
  return cost;
}

}  // namespace ortmodule

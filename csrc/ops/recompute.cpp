#include "ops/recompute.h"

#include "ops/registry.h"

namespace ortmodule {
namespace {

template <typename Table>
typename Table::mapped_type find(const Table& table, const Node& node) {
  // By the record's name: a graph may hold a standard operator under our own domain.
  const auto it = table.find(node.record()->qualified_name());
  return it == table.end() ? nullptr : it->second;
}

std::string key(const std::string& domain, const std::string& op) { return domain.empty() ? op : domain + "::" + op; }

}  // namespace

RecomputeFacts& RecomputeFacts::instance() {
  static RecomputeFacts facts;
  return facts;
}

bool RecomputeFacts::set_form(const std::string& domain, const std::string& op, RecomputeFormFn form) {
  return forms_.emplace(key(domain, op), form).second;
}

bool RecomputeFacts::set_flops(const std::string& domain, const std::string& op, FlopsFn flops) {
  return flops_.emplace(key(domain, op), flops).second;
}

RecomputeFormFn RecomputeFacts::form(const Node& node) const { return find(forms_, node); }
FlopsFn RecomputeFacts::flops(const Node& node) const { return find(flops_, node); }

double count_elements(const Shape& shape, const SizeOf& size) {
  double count = 1;
  for (const Dim& dim : shape) count *= size(dim);
  return count;
}

}  // namespace ortmodule

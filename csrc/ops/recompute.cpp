#include "ops/recompute.h"

#include "ops/registry.h"

namespace ortmodule {
namespace {

template <typename Found, typename Table>
Found find(const Table& table, const Node& node) {
  // By the record's name: a graph may hold a standard operator under our own domain.
  const auto it = table.find(node.record()->qualified_name());
  return it == table.end() ? Found() : Found(it->second);
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

bool RecomputeFacts::set_passes(const std::string& domain, const std::string& op, double passes) {
  return passes_.emplace(key(domain, op), passes).second;
}

RecomputeFormFn RecomputeFacts::form(const Node& node) const { return find<RecomputeFormFn>(forms_, node); }
FlopsFn RecomputeFacts::flops(const Node& node) const { return find<FlopsFn>(flops_, node); }
Passes RecomputeFacts::passes(const Node& node) const { return find<Passes>(passes_, node); }

double count_elements(const Shape& shape, const SizeOf& size) {
  double count = 1;
  for (const Dim& dim : shape) count *= size(dim);
  return count;
}

}  // namespace ortmodule

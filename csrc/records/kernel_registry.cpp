#include "records/kernel_registry.h"

#include <algorithm>
#include <shared_mutex>

#include "cuda/tables.h"
#include "records/registry.h"
#include "records/registry_lock.h"

namespace ortmodule {
namespace {

constexpr const char* kCuda = "cuda";

// Kernels of "cuda" also run on whatever device has a table of their launches, behind those of its own.
std::vector<std::string> with_cuda(std::vector<std::string> providers) {
  const bool named = std::find(providers.begin(), providers.end(), kCuda) != providers.end();
  if (!named && std::any_of(providers.begin(), providers.end(),
                            [](const std::string& name) { return cuda::table_of(name) != nullptr; }))
    providers.emplace_back(kCuda);
  return providers;
}

}  // namespace

KernelRegistry& KernelRegistry::instance() {
  static KernelRegistry registry;
  return registry;
}

KernelDef& KernelRegistry::add(const std::string& domain, const std::string& op, const std::string& provider,
                               KernelFactory make, const char* file) {
  auto def = std::make_unique<KernelDef>();
  def->domain = domain;
  def->op = op;
  def->provider = provider;
  def->make = make;
  def->file = file;
  by_name_[domain + "::" + op].push_back(def.get());
  defs_.push_back(std::move(def));
  return *defs_.back();
}

const KernelDef* KernelRegistry::find(const Node& node, const std::vector<std::string>& given) const {
  const std::vector<std::string> providers = with_cuda(given);
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  // By the record's name: a file may hold a standard operator under our own domain.
  auto it = by_name_.find(node.record()->domain() + "::" + node.record()->name());
  if (it == by_name_.end()) return nullptr;
  const DType dtype = node.input(0) ? node.input(0)->type().dtype : DType::kUndefined;
  const int opset = node.record()->since();
  const KernelDef* best = nullptr;
  size_t rank = providers.size() + 1;  // of the best one
  for (const KernelDef* def : it->second) {
    if (opset < def->first_opset || opset > def->last_opset) continue;
    if (!def->dtypes.empty() && std::find(def->dtypes.begin(), def->dtypes.end(), dtype) == def->dtypes.end()) continue;
    const auto at = std::find(providers.begin(), providers.end(), def->provider);
    if (at == providers.end() && def->provider != "aten") continue;
    const auto place = static_cast<size_t>(at - providers.begin());
    if (place < rank || (place == rank && at == providers.end())) {  // of two of "aten" the later one
      rank = place;
      best = def;
    }
  }
  return best;
}

bool KernelRegistry::has(const std::string& qualified, const std::vector<std::string>& given) const {
  const std::vector<std::string> providers = with_cuda(given);
  const std::shared_lock<std::shared_mutex> lock(registry_mutex());
  const auto it = by_name_.find(qualified);
  return it != by_name_.end() && std::any_of(it->second.begin(), it->second.end(), [&](const KernelDef* def) {
           return std::find(providers.begin(), providers.end(), def->provider) != providers.end();
         });
}

}  // namespace ortmodule

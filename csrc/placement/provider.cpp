#include "placement/provider.h"

#include <algorithm>
#include <sstream>

#include "base/status.h"
#include "cuda/generated.h"
#include "cuda/tables.h"
#include "records/kernel_registry.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

constexpr const char* kOperators = "operators";
constexpr const char* kExcept = "except";
constexpr const char* kPrices = "prices";

std::vector<std::string> listed(const ProviderSpec& spec, const char* option) {
  const auto found = spec.options.find(option);
  std::vector<std::string> names;
  if (found == spec.options.end()) return names;
  std::istringstream text(found->second);
  for (std::string name; std::getline(text, name, ',');) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A device of torch's: it runs what has a kernel, on the memory of that device. Its option "prices" names the type of
// device whose work it prices: ("cpu", prices="cuda") plans as for a GPU, on paper.
class DeviceProvider final : public ExecutionProvider {
 public:
  explicit DeviceProvider(const ProviderSpec& spec) : ExecutionProvider(spec, spec.name, {kPrices}) {
    if (device_type() == "cuda") cuda::load_library();
    const auto named = spec.options.find(kPrices);
    prices_ = prices_of(named == spec.options.end() ? device_type() : named->second);
    if (location() == "cpu")
      prices_.host_bytes = 0;
    else
      prices_.runs_programs = cuda::compiler_of(device_type()) != nullptr;
  }
  Prices prices() const override { return prices_; }

 private:
  Prices prices_;
};

}  // namespace

ExecutionProvider::ExecutionProvider(const ProviderSpec& spec, std::string location,
                                     const std::vector<std::string>& further)
    : name_(spec.name),
      location_(std::move(location)),
      operators_(listed(spec, kOperators)),
      except_(listed(spec, kExcept)) {
  std::vector<std::string> known{kOperators, kExcept};
  known.insert(known.end(), further.begin(), further.end());
  for (const auto& [option, value] : spec.options) {
    if (contains(known, option)) continue;
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    fail(ErrorCode::kInvalidArgument, "the provider '", name_, "' has no option '", option, "'; it has ", names);
  }
}

bool ExecutionProvider::may_run(const Node& node) const {
  if (!operators_.empty() && !contains(operators_, node.op())) return false;
  return !contains(except_, node.op());
}

std::vector<Claim> ExecutionProvider::capability(const std::vector<const Node*>& nodes) const {
  std::vector<Claim> claims;
  for (const Node* node : nodes)
    if (may_run(*node) && KernelRegistry::instance().find(*node, {name_, device_type()})) claims.push_back({{node}});
  return claims;
}

ProviderRegistry& ProviderRegistry::instance() {
  static ProviderRegistry registry;
  return registry;
}

void ProviderRegistry::add(const std::string& name, ProviderFactory factory) {
  ORTMODULE_CHECK_ARG(factories_.emplace(name, factory).second, "there is an execution provider '", name, "' already");
}

std::shared_ptr<const ExecutionProvider> ProviderRegistry::make(const ProviderSpec& spec) const {
  const auto found = factories_.find(spec.name);
  return found == factories_.end() ? std::make_shared<const DeviceProvider>(spec) : found->second(spec);
}

}  // namespace ortmodule

#include "records/user_gradient.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "base/status.h"

namespace ortmodule {
namespace {

struct Formulas {
  std::shared_mutex mutex;
  std::atomic<bool> any{false};
  std::deque<GradFn> all;
  std::unordered_map<std::string, const GradFn*> by_name;
};

// Never destroyed: a formula may hold objects of an interpreter that ends before the process does.
Formulas& formulas() {
  static auto& table = *new Formulas;
  return table;
}

std::string qualified(const std::string& domain, const std::string& op) {
  return (domain.empty() ? std::string() : domain + "::") + op;
}

}  // namespace

void remove_user_gradient(const std::string& domain, const std::string& op) {
  Formulas& table = formulas();
  const std::unique_lock<std::shared_mutex> lock(table.mutex);
  table.by_name.erase(qualified(domain, op));
}

void set_user_gradient(const std::string& domain, const std::string& op, GradFn formula, bool replace) {
  const std::string name = qualified(domain, op);
  const OpRecord* record = Registry::instance().find(domain, op, INT64_MAX);
  const bool ours = domain.empty() || domain == kOwnDomain || domain == kAtenDomain || domain == "com.microsoft";
  if (!record && ours) {
    const std::string near = Registry::instance().suggestion(domain, op);
    fail(ErrorCode::kInvalidArgument, "there is no operator ", name,
         near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  Formulas& table = formulas();
  const std::unique_lock<std::shared_mutex> lock(table.mutex);
  const bool taken = table.by_name.count(name) || (record && record->differentiable() && !record->has(kOpenGradient));
  ORTMODULE_CHECK_ARG(!taken || replace, "the operator ", name, " has a gradient already; replace=True replaces it");
  table.all.push_back(std::move(formula));
  table.by_name[name] = &table.all.back();
  table.any = true;
}

const GradFn* user_gradient(const OpRecord& record) {
  Formulas& table = formulas();
  if (!table.any) return nullptr;
  const std::shared_lock<std::shared_mutex> lock(table.mutex);
  const auto found = table.by_name.find(record.qualified_name());
  return found == table.by_name.end() ? nullptr : found->second;
}

}  // namespace ortmodule

#include "transforms/pass_registry.h"

#include <algorithm>
#include <tuple>

#include "base/status.h"

namespace ortmodule {
namespace {

const PassInfo* find(const std::string& name) {
  for (const PassInfo& info : PassRegistry::instance().passes())
    if (info.name == name) return &info;
  return nullptr;
}

bool runs_before(const PassInfo& a, const PassInfo& b) { return std::tie(a.place, a.name) < std::tie(b.place, b.name); }

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

PassRegistry& PassRegistry::instance() {
  static PassRegistry registry;
  return registry;
}

bool PassRegistry::add(PassInfo info) {
  for (const PassInfo& other : passes_)
    ORTMODULE_CHECK_ARG(other.name != info.name, "there are two passes '", info.name, "'");
  passes_.insert(std::upper_bound(passes_.begin(), passes_.end(), info, runs_before), std::move(info));
  return true;
}

std::unique_ptr<GraphTransformer> make_pass(const std::string& name) {
  const PassInfo* info = find(name);
  ORTMODULE_CHECK_ARG(info, "there is no pass '", name, "'");
  return info->make();
}

void check_choice(const PassChoice& choice) {
  std::string known;
  for (const PassInfo& info : PassRegistry::instance().passes()) known += (known.empty() ? "" : ", ") + info.name;
  for (const std::string& name : choice.disabled) {
    const PassInfo* info = find(name);
    ORTMODULE_CHECK_ARG(info, "there is no pass '", name, "' to disable; there are ", known);
    ORTMODULE_CHECK_ARG(info->level != PassLevel::kRequired, "the pass '", name,
                        "' cannot be disabled: without it some graphs do not run");
  }
  for (const PassInfo& info : choice.added)
    ORTMODULE_CHECK_ARG(!find(info.name), "a pass of the user has the name '", info.name, "' of one of the engine's");
}

TransformerManager make_passes(PassStage stage, const TransformerManager::Options& options, const PassChoice& choice) {
  std::vector<PassInfo> passes = PassRegistry::instance().passes();
  // A user's passes stay in the order in which they were given.
  passes.insert(std::upper_bound(passes.begin(), passes.end(), pass_place::kUser,
                                 [](int place, const PassInfo& info) { return place < info.place; }),
                choice.added.begin(), choice.added.end());
  TransformerManager manager(options);
  const int wanted = stage == PassStage::kForward ? kForwardOnly : kJointOnly;
  for (const PassInfo& info : passes)
    if ((info.stages & wanted) && !contains(choice.disabled, info.name)) manager.add(info.make(), info.level);
  return manager;
}

}  // namespace ortmodule

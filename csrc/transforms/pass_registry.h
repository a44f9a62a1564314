// The passes: each says in its own file at which stage and place it runs, by one statement at the end.
//
//     ORTMODULE_PASS(ConstantFolding, PassLevel::kBasic, kBothStages, pass_place::kCleanUp + 1);
//     ORTMODULE_RULES("fuse_stack", PassLevel::kBasic, kForwardOnly, pass_place::kPatterns, StackRule);
//
// `python -c "import ortmodule; print(ortmodule.pass_names())"` lists them in the order in which they run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/registration.h"
#include "ortmodule/export.h"
#include "transforms/transformer.h"

namespace ortmodule {

enum PassStages { kForwardOnly = 1, kJointOnly = 2, kBothStages = 3 };

// Where in a round a pass runs. Passes of one place run in the order of their names.
namespace pass_place {
constexpr int kUser = 0;        // sees the operators as they were captured
constexpr int kCleanUp = 100;   // what others need not see
constexpr int kRandom = 200;    // how numbers are drawn
constexpr int kRows = 300;      // rows that nobody needs; attention is one node
constexpr int kPatterns = 400;  // several nodes that are one operator
constexpr int kBackward = 500;  // what the gradient left
constexpr int kForms = 600;     // operators that no kernel runs as they are
constexpr int kLast = 900;      // what the others left unused
}  // namespace pass_place

struct PassInfo {
  std::string name;
  PassLevel level;
  PassStages stages;
  int place;
  std::function<std::unique_ptr<GraphTransformer>()> make;
};

class PassRegistry {
 public:
  ORTMODULE_API static PassRegistry& instance();
  // Throws kInvalidArgument where the name is taken.
  ORTMODULE_API bool add(PassInfo info);
  // In the order in which they run.
  const std::vector<PassInfo>& passes() const { return passes_; }

 private:
  std::vector<PassInfo> passes_;
};

// A registered pass on its own; kInvalidArgument where there is none of the name.
std::unique_ptr<GraphTransformer> make_pass(const std::string& name);

struct PassChoice {
  std::vector<std::string> disabled{};  // names of passes that are left out; those of kRequired cannot be
  std::vector<PassInfo> added{};        // passes of a user
};

// Throws kInvalidArgument for a name that is no pass's, or one that cannot be left out.
void check_choice(const PassChoice& choice);

// A manager of the passes of a stage.
TransformerManager make_passes(PassStage stage, const TransformerManager::Options& options,
                               const PassChoice& choice = {});

template <typename... Rules>
std::unique_ptr<GraphTransformer> make_rules(const char* name) {
  std::vector<std::unique_ptr<RewriteRule>> rules;
  (rules.push_back(std::make_unique<Rules>()), ...);
  return std::make_unique<RuleBasedTransformer>(name, std::move(rules));
}

}  // namespace ortmodule

#define ORTMODULE_PASS(Class, level, stages, place)                                                                 \
  [[maybe_unused]] static const bool pass_of_##Class = registered([] {                                              \
    PassRegistry::instance().add({Class().name(), level, stages, place, [] { return std::make_unique<Class>(); }}); \
  })

// A pass of rules (RewriteRule), in the order in which a node is offered to them.
#define ORTMODULE_RULES(name, level, stages, place, ...)                                                      \
  [[maybe_unused]] static const bool pass_of_rules = registered([] {                                          \
    PassRegistry::instance().add({name, level, stages, place, [] { return make_rules<__VA_ARGS__>(name); }}); \
  })

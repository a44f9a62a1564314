// The list of passes: its order, what a user adds and leaves out, and what a listener is told.
#include "transforms/pass_registry.h"

#include <algorithm>

#include "support.h"

namespace ortmodule {
namespace {

using testing::count;
using testing::expect_error;
using testing::resolved;

// Turns each Neg into an Abs.
class Absolute : public GraphTransformer {
 public:
  const char* name() const override { return "absolute"; }
  size_t apply(Graph& graph, const TransformContext&) override {
    size_t changes = 0;
    for (Node* node : graph.nodes()) {
      if (node->op() != "Neg") continue;
      Node* other = graph.add_node("", "Abs", node->inputs(), {""}, {}, node);
      infer_node(*other);
      graph.replace_all_uses(node->output(0), other->output(0));
      graph.remove(node);
      ++changes;
    }
    return changes;
  }
};

PassInfo absolute(const std::string& name = "absolute") {
  return {name, PassLevel::kRequired, kBothStages, pass_place::kUser, [] { return std::make_unique<Absolute>(); }};
}

std::vector<std::string> names_of(const TransformerManager& manager) {
  std::vector<std::string> names;
  for (const PassRecord& record : manager.records()) names.push_back(record.name);
  return names;
}

TEST(PassRegistry, RunsPassesByPlaceAndName) {
  const std::vector<PassInfo>& passes = PassRegistry::instance().passes();
  EXPECT_TRUE(std::is_sorted(passes.begin(), passes.end(), [](const PassInfo& a, const PassInfo& b) {
    return std::tie(a.place, a.name) < std::tie(b.place, b.name);
  }));
  const std::vector<std::string> joint = names_of(make_passes(PassStage::kJoint, {}));
  EXPECT_EQ(joint.front(), "identity_elimination");
  EXPECT_EQ(joint.back(), "dead_node_elimination");
  EXPECT_EQ(std::count(joint.begin(), joint.end(), "counter_dropout"), 0) << "it is of forward alone";
  expect_error(ErrorCode::kInvalidArgument, "two passes 'fuse_stack'",
               [] { PassRegistry::instance().add(absolute("fuse_stack")); });
  expect_error(ErrorCode::kInvalidArgument, "no pass 'nothing'", [] { make_pass("nothing"); });
}

TEST(PassRegistry, ChoosesPasses) {
  const PassChoice choice{{"identity_elimination"}, {absolute()}};
  check_choice(choice);
  const std::vector<std::string> names = names_of(make_passes(PassStage::kForward, {}, choice));
  EXPECT_EQ(names.front(), "absolute");
  EXPECT_EQ(std::count(names.begin(), names.end(), "identity_elimination"), 0);
  expect_error(ErrorCode::kInvalidArgument, "no pass 'x' to disable; there are ", [] { check_choice({{"x"}, {}}); });
  expect_error(ErrorCode::kInvalidArgument, "cannot be disabled", [] { check_choice({{"decompose_attention"}, {}}); });
  expect_error(ErrorCode::kInvalidArgument, "has the name 'fuse_stack'",
               [] { check_choice({{}, {absolute("fuse_stack")}}); });
}

struct Notes : PassListener {
  void before(const PassRun& run, const Graph& graph) override {
    text.push_back("before " + run.pass + " " + std::to_string(count(graph, "Neg")));
  }
  void after(const PassRun& run, const Graph& graph) override {
    text.push_back("after " + run.pass + " " + std::to_string(count(graph, "Neg")) + " changed " +
                   std::to_string(run.modifications) + " in round " + std::to_string(run.round));
    EXPECT_EQ(run.stage, PassStage::kForward);
    EXPECT_GE(run.seconds, 0);
  }
  std::vector<std::string> text;
};

TEST(PassRegistry, TellsAListenerOfEachRun) {
  auto graph = resolved("graph g(x: float[4]) -> (y)\n %a = Neg(%x)\n %y = Neg(%a)");
  const auto notes = std::make_shared<Notes>();
  TransformerManager::Options options;
  options.listener = notes;
  options.verify = true;
  make_passes(PassStage::kForward, options, {{}, {absolute()}}).run(*graph, {});
  ASSERT_GE(notes->text.size(), 2u);
  EXPECT_EQ(notes->text[0], "before absolute 2");
  EXPECT_EQ(notes->text[1], "after absolute 0 changed 2 in round 0");
  EXPECT_NE(std::find(notes->text.begin(), notes->text.end(), "after absolute 0 changed 0 in round 1"),
            notes->text.end());
}

}  // namespace
}  // namespace ortmodule

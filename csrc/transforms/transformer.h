// What a pass is, and the manager that runs a list of them.
//
// Passes ask operator records (traits, bodies) instead of listing operators, except where a pass is about one operator.
// Which passes there are and in which order they run: pass_registry.h. Not here: memory and order (plan/), gradients
// (gradient/).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "records/prices.h"

namespace ortmodule {

struct TransformOptions {
  std::string dropout = "exact";  // "exact": ATen's generator; "fast": a counter-based one, see counter_dropout.cpp
  bool whole_masks = false;       // of "fast": an element's number is that among all rows, where some are left out
  int64_t fold_limit_bytes = 1 << 16;  // constant folding keeps results up to this size
};

enum class PassStage {
  kForward,  // before the gradient is built, or for inference
  kJoint,    // forward and backward together
};
ORTMODULE_API const char* stage_name(PassStage stage);  // "forward", "joint"

struct TransformContext {
  PassStage stage = PassStage::kForward;
  bool training = false;  // a gradient is still to be built
  // The graph inputs (and initializers) whose gradient is wanted.
  std::unordered_set<const NodeArg*> grad_inputs{};
  TransformOptions options{};
  Prices prices{};      // of the provider that runs most
  SymbolTable sizes{};  // of the call that is compiled for, where they are known
  // Outputs of a node whose inputs are all constants; empty when it cannot run here. Unset: nothing is evaluated.
  std::function<std::vector<TensorData>(const Node&)> evaluate{};
};

class GraphTransformer {
 public:
  virtual ~GraphTransformer() = default;
  virtual const char* name() const = 0;
  // Returns the number of modifications; 0: the graph is as it was. Near linear in nodes.
  virtual size_t apply(Graph& graph, const TransformContext& context) = 0;
};

// One local change around a node. match() must not change anything.
class RewriteRule {
 public:
  virtual ~RewriteRule() = default;
  virtual const char* name() const = 0;
  // The operators it starts at, as Node::qualified_op() writes them.
  virtual std::vector<std::string> ops() const = 0;
  virtual bool match(const Node& node, const TransformContext& context) const = 0;
  // May remove the node it is given and nodes before it, never nodes behind it.
  virtual void rewrite(Graph& graph, Node& node, const TransformContext& context) const = 0;
};

// Offers each node, in list order, to the rules of its operator; the first that matches rewrites it.
class ORTMODULE_API RuleBasedTransformer : public GraphTransformer {
 public:
  RuleBasedTransformer(const char* name, std::vector<std::unique_ptr<RewriteRule>> rules);
  const char* name() const override { return name_; }
  size_t apply(Graph& graph, const TransformContext& context) override;

 private:
  const char* name_;
  std::vector<std::unique_ptr<RewriteRule>> rules_;
  std::unordered_map<std::string, std::vector<const RewriteRule*>> by_op_;
};

// Passes of a level run only when that level was asked for.
enum class PassLevel {
  kRequired = 0,  // without it the graph cannot be differentiated or run
  kBasic = 1,     // keeps every result bit for bit
  kExtended = 2,  // may change the order of a sum or the stream of random numbers
};

struct PassRecord {
  std::string name;
  size_t runs = 0;
  size_t modifications = 0;
  double seconds = 0;
};

// One run of a pass.
struct PassRun {
  PassStage stage;
  std::string pass;
  int round;
  size_t modifications = 0;  // once it is through
  double seconds = 0;
};

// Is told of every run of a pass, before and after it. May look at the graph, not change it.
class PassListener {
 public:
  virtual ~PassListener() = default;
  virtual void before(const PassRun& run, const Graph& graph) = 0;
  virtual void after(const PassRun& run, const Graph& graph) = 0;
};

class TransformerManager {
 public:
  struct Options {
    PassLevel level = PassLevel::kBasic;
    int max_rounds = 5;   // the list is run again until a round changes nothing
    bool verify = false;  // check the whole graph after each pass
    std::shared_ptr<PassListener> listener{};
  };

  TransformerManager() = default;
  explicit TransformerManager(Options options) : options_(options) {}
  void add(std::unique_ptr<GraphTransformer> pass, PassLevel level);

  // Runs the passes up to the level. An Error names the pass and those that ran before it. Returns all modifications.
  size_t run(Graph& graph, const TransformContext& context);
  // One record per pass in the order of the list, summed over rounds and calls.
  const std::vector<PassRecord>& records() const { return records_; }

 private:
  struct Entry {
    std::unique_ptr<GraphTransformer> pass;
    PassLevel level;
    size_t record;
  };
  size_t run_pass(Entry& entry, int round, Graph& graph, const TransformContext& context);
  Options options_;
  std::vector<Entry> passes_;
  std::vector<PassRecord> records_;
  std::vector<std::string> history_;
};

// By value id: whether a gradient flows to the value, from context.grad_inputs through differentiable inputs.
std::vector<bool> wants_gradient(const Graph& graph, const TransformContext& context);

}  // namespace ortmodule

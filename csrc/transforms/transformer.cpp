#include "transforms/transformer.h"

#include <chrono>

#include "base/limits.h"
#include "base/status.h"
#include "graph/verify.h"
#include "records/registry.h"
#include "records/resolve.h"

namespace ortmodule {

const char* stage_name(PassStage stage) { return stage == PassStage::kForward ? "forward" : "joint"; }

RuleBasedTransformer::RuleBasedTransformer(const char* name, std::vector<std::unique_ptr<RewriteRule>> rules)
    : name_(name), rules_(std::move(rules)) {
  for (const auto& rule : rules_)
    for (const std::string& op : rule->ops()) by_op_[op].push_back(rule.get());
}

size_t RuleBasedTransformer::apply(Graph& graph, const TransformContext& context) {
  size_t modifications = 0;
  graph.for_each([&](Node& node) {
    const auto rules = by_op_.find(node.qualified_op());
    if (rules == by_op_.end()) return;
    for (const RewriteRule* rule : rules->second) {
      if (!rule->match(node, context)) continue;
      rule->rewrite(graph, node, context);
      ++modifications;
      return;  // the node may be gone
    }
  });
  return modifications;
}

void TransformerManager::add(std::unique_ptr<GraphTransformer> pass, PassLevel level) {
  records_.push_back({pass->name(), 0, 0, 0});
  passes_.push_back({std::move(pass), level, records_.size() - 1});
}

size_t TransformerManager::run_pass(Entry& entry, int round, Graph& graph, const TransformContext& context) {
  const char* name = entry.pass->name();
  PassRun run{context.stage, name, round};
  if (options_.listener) options_.listener->before(run, graph);
  const auto start = std::chrono::steady_clock::now();
  size_t modifications = 0;
  try {
    modifications = entry.pass->apply(graph, context);
    if (options_.verify) {
      verify_edges(graph);
      resolve(graph, {.infer = false});
    }
  } catch (const Error& e) {
    std::string ran;
    for (const std::string& pass : history_) ran += (ran.empty() ? "" : ", ") + pass;
    fail(e.code(), e.what(), " [in the pass ", name, ran.empty() ? "" : "; ran before: ", ran, "]");
  }
  run.modifications = modifications;
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options_.listener) options_.listener->after(run, graph);
  PassRecord& record = records_[entry.record];
  ++record.runs;
  record.modifications += modifications;
  record.seconds += run.seconds;
  if (modifications > 0) history_.emplace_back(name);
  return modifications;
}

size_t TransformerManager::run(Graph& graph, const TransformContext& context) {
  history_.clear();
  size_t total = 0;
  for (int round = 0; round < options_.max_rounds; ++round) {
    size_t changed = 0;
    for (Entry& entry : passes_) {
      if (entry.level > options_.level) continue;
      if (const auto& allowance = Allowance::current()) allowance->check_time();
      changed += run_pass(entry, round, graph, context);
    }
    total += changed;
    if (changed == 0) break;
  }
  return total;
}

std::vector<bool> wants_gradient(const Graph& graph, const TransformContext& context) {
  std::vector<bool> wants(graph.value_id_bound(), false);
  for (const NodeArg* in : context.grad_inputs) wants[in->id()] = true;
  graph.for_each([&](Node& node) {
    const OpRecord* record = node.record();
    if (!record || !record->differentiable()) return;
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const FormalInput* formal = record->formal_input(i);
      if (!node.inputs()[i] || !wants[node.inputs()[i]->id()]) continue;
      if (!formal || formal->gradient != FormalInput::Gradient::kDifferentiable) continue;
      for (const NodeArg* out : node.outputs())
        if (out && is_floating(out->type().dtype)) wants[out->id()] = true;
      return;
    }
  });
  return wants;
}

}  // namespace ortmodule

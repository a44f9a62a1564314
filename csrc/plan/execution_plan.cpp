#include "plan/execution_plan.h"

#include <algorithm>
#include <sstream>

#include "base/status.h"
#include "graph/value_bytes.h"
#include "plan/streams.h"
#include "records/draws.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// Nodes of one phase that `outputs` need, by node id.
std::vector<char> needed_nodes(const Graph& graph, Phase phase, const std::vector<NodeArg*>& outputs) {
  std::vector<char> needed(graph.node_id_bound(), 0);
  std::vector<Node*> stack;
  const auto want = [&](const NodeArg* value) {
    Node* node = value ? value->producer() : nullptr;
    if (node && node->phase() == phase && !needed[node->id()]) {
      needed[node->id()] = 1;
      stack.push_back(node);
    }
  };
  for (const NodeArg* out : outputs) want(out);
  graph.for_each([&](Node& node) {
    if (node.phase() == phase && (node.record()->has(kSideEffect) || draws(node)) && !needed[node.id()]) {
      needed[node.id()] = 1;
      stack.push_back(&node);
    }
  });
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (const NodeArg* in : node->inputs()) want(in);
  }
  return needed;
}

}  // namespace

const char* kind_name(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::kTransfer:
      return "Transfer";
    case Step::Kind::kBarrier:
      return "Barrier";
    case Step::Kind::kWaitOnEP:
      return "WaitOnEP";
    case Step::Kind::kActivateNotification:
      return "ActivateNotification";
    case Step::Kind::kTriggerDownstream:
      return "TriggerDownstream";
    case Step::Kind::kLaunchKernel:
      break;
  }
  return "LaunchKernel";
}

int SlotTable::slot(const NodeArg& value) {
  return by_name_.try_emplace(value.name(), static_cast<int>(by_name_.size())).first->second;
}

int SlotTable::find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

double planned_bytes(const NodeArg& value, const SymbolTable& sizes) {
  const Node* node = value.producer();
  if (!node || value.constant() || !value.type().shape) return 0;
  if (const OpRecord* record = node->record(); record && (record->has(kView) || record->has(kHostOutput))) return 0;
  return estimated_bytes(value.type(), sizes);
}

ExecutionPlan make_plan(const Graph& graph, const PlanRequest& request, SlotTable& slots) {
  ExecutionPlan plan;
  plan.name = request.name;
  const std::vector<char> needed = needed_nodes(graph, request.phase, request.outputs);

  // Lifetimes: the last step that reads a value; outputs, kept values and constants are never released.
  std::vector<char> pinned(graph.value_id_bound(), !request.reuse);
  for (const NodeArg* out : request.outputs)
    if (out) pinned[out->id()] = 1;
  for (size_t i = 0; i < request.keep.size() && i < pinned.size(); ++i)
    if (request.keep[i]) pinned[i] = 1;

  std::vector<const Node*> order;
  graph.for_each([&](Node& node) {
    if (needed[node.id()]) order.push_back(&node);
  });
  if (request.order != ExecutionOrder::kDefault) {
    OrderFacts facts{std::vector<double>(graph.value_id_bound(), 0), pinned};
    for (const Node* node : order)
      for (const auto* values : {&node->inputs(), &node->outputs()})
        for (const NodeArg* value : *values)
          if (value) facts.bytes[value->id()] = planned_bytes(*value, request.sizes);
    order = in_order(std::move(order), request.order, facts);
  }
  std::vector<size_t> last(graph.value_id_bound(), SIZE_MAX);
  std::vector<char> constant_seen(graph.value_id_bound(), 0);
  for (size_t i = 0; i < order.size(); ++i)
    for (const NodeArg* in : order[i]->inputs())
      if (in) last[in->id()] = i;

  const auto note_constant = [&](const NodeArg* value) {
    if (value && value->constant() && !constant_seen[value->id()]) {
      constant_seen[value->id()] = 1;
      plan.constants.emplace_back(slots.slot(*value), value);
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const Node& node = *order[i];
    Step step;
    step.node = &node;
    std::vector<const NodeArg*> dead;
    for (const NodeArg* in : node.inputs()) {
      note_constant(in);
      step.inputs.push_back(in ? slots.slot(*in) : -1);
      const bool dies = in && !in->constant() && !pinned[in->id()] && last[in->id()] == i;
      const bool repeated = dies && std::find(dead.begin(), dead.end(), in) != dead.end();
      const bool again = dies && std::count(node.inputs().begin(), node.inputs().end(), in) > 1;
      step.last_use.push_back(dies && !again);  // an operand that is read twice must not be overwritten
      if (dies && !repeated) {
        dead.push_back(in);
        step.release.push_back(slots.slot(*in));
      }
    }
    for (const NodeArg* out : node.outputs()) {
      step.outputs.push_back(out ? slots.slot(*out) : -1);
      if (out && !pinned[out->id()] && last[out->id()] == SIZE_MAX) step.release.push_back(slots.slot(*out));
    }
    plan.steps.push_back(std::move(step));
  }
  for (const NodeArg* out : request.outputs) {
    note_constant(out);
    plan.output_slots.push_back(out ? slots.slot(*out) : -1);
    plan.output_names.push_back(out ? out->name() : "");
  }
  assign_streams(plan, {request.device_type, pinned, request.settled});
  if (request.parallel && !plan.placed) plan.parallel = parallel_steps(plan, request);
  return plan;
}

std::vector<NodeArg*> saved_for_backward(const Graph& graph, const std::vector<NodeArg*>& dxs) {
  std::vector<NodeArg*> saved;
  std::vector<char> seen(graph.value_id_bound(), 0);
  const auto look = [&](NodeArg* value) {
    if (!value || value->constant() || seen[value->id()]) return;
    if (value->producer() ? value->producer()->phase() != Phase::kForward : false) return;
    seen[value->id()] = 1;
    saved.push_back(value);
  };
  const std::vector<char> needed = needed_nodes(graph, Phase::kBackward, dxs);
  graph.for_each([&](Node& node) {
    if (needed[node.id()])
      for (NodeArg* in : node.inputs()) look(in);
  });
  for (NodeArg* dx : dxs) look(dx);
  return saved;
}

namespace {

void print_step(std::ostream& out, const ExecutionPlan& plan, size_t i, const std::string& note) {
  const Step& step = plan.steps[i];
  out << "    " << i << " " << kind_name(step.kind) << " " << step.node->qualified_op() << " '" << step.node->name()
      << "' (";
  for (size_t k = 0; k < step.inputs.size(); ++k)
    out << (k ? ", " : "") << step.inputs[k] << (step.last_use[k] ? "!" : "");
  out << ") -> (";
  for (size_t k = 0; k < step.outputs.size(); ++k) out << (k ? ", " : "") << step.outputs[k];
  out << ")";
  if (!step.release.empty()) {
    out << " release";
    for (int slot : step.release) out << " " << slot;
  }
  if (plan.parallel && !plan.parallel->before[i].empty()) {
    out << " after";
    for (uint32_t earlier : plan.parallel->before[i]) out << " " << earlier;
  }
  out << note << "\n";
}

void print_kind(std::ostream& out, Step::Kind kind, int notification) {
  out << "      " << kind_name(kind);
  if (notification >= 0) out << " " << notification;
  out << "\n";
}

void print_wait(std::ostream& out, const ExecutionPlan& plan, const Wait& wait) {
  print_kind(out, is_host(plan.streams[wait.stream]) ? Step::Kind::kBarrier : Step::Kind::kWaitOnEP, wait.notification);
}

}  // namespace

std::string ExecutionPlan::text(const std::function<std::string(const Step&)>& note) const {
  using Kind = Step::Kind;
  std::ostringstream out;
  out << "plan " << name << ": " << steps.size() << " steps\n";
  for (size_t s = 0; s < streams.size(); ++s) {
    out << "  stream " << s << " on " << streams[s].device;
    out << (streams[s].role == LogicStream::Role::kTransfer ? ", transfers\n" : "\n");
    for (const auto& [notification, stream] : begins)
      if (stream == s) print_kind(out, Kind::kActivateNotification, notification);
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const Wait& wait : steps[i].waits)
        if (wait.stream == s) print_wait(out, *this, wait);
      if (steps[i].stream != s) continue;
      print_step(out, *this, i, note ? note(steps[i]) : "");
      if (steps[i].notifies >= 0) print_kind(out, Kind::kActivateNotification, steps[i].notifies);
      if (steps[i].triggers) print_kind(out, Kind::kTriggerDownstream, -1);
    }
    for (const Wait& wait : ends)
      if (wait.stream == s) print_wait(out, *this, wait);
  }
  return out.str();
}

}  // namespace ortmodule

#include "session/report.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "base/status.h"
#include "graph/value_bytes.h"
#include "onnx/export.h"
#include "plan/streams.h"
#include "records/registry.h"
#include "transforms/lower_portable.h"
#include "transforms/schema_types.h"

namespace ortmodule {
namespace {

const char* phase_of(const Node& node) { return node.phase() == Phase::kForward ? "forward" : "backward"; }

// An operator of torch's by its own name.
std::string shown_op(const Node& node) {
  return node.domain() == kAtenDomain ? node.get_string("operator", node.op()) : node.op();
}

std::string first_value(const Node& node) {
  for (const NodeArg* value : node.outputs())
    if (value) return value->name();
  return "";
}

}  // namespace

SessionStatistics statistics_of(const Session& session) {
  const CompiledModel& compiled = session.compiled();
  const TrainingAgent& agent = *compiled.agent;
  SessionStatistics out;
  out.forward_nodes = compiled.forward_nodes;
  out.backward_nodes = compiled.backward_nodes;
  compiled.graph->for_each([&](Node& node) {
    if (node.domain() == kAtenDomain && node.phase() == Phase::kForward) ++out.aten_nodes[shown_op(node)];
  });
  for (bool reachable : agent.program().x_reachable) out.gradients += reachable;
  const std::vector<size_t>& segments = agent.segments();
  out.gradient_segments = segments.empty() ? 0 : *std::max_element(segments.begin(), segments.end()) + 1;
  for (const Stage& stage : compiled.stages) out.seconds.emplace_back(stage.name, stage.seconds);
  out.passes = compiled.passes;
  out.recomputed_nodes = compiled.recomputed.nodes;
  out.fused_kernels = compiled.fused.kernels;
  out.fused_nodes = compiled.fused.nodes;
  for (const auto& one : session.agents())
    if (out.sizes.empty()) out.sizes = one->program().forward->profiled_sizes();
  const MemoryPeak forward = agent.forward_peak();
  out.peak_forward_bytes = forward.bytes;
  out.saved_bytes = forward.saved;
  out.peak_backward_bytes = agent.backward_peak().bytes;
  if (const StepMemory* memory = agent.memory()) {
    out.arena_bytes = memory->arena_bytes();
    out.unplanned_allocations = memory->unplanned();
  }
  return out;
}

std::vector<PeakValue> memory_at_peak(const Session& session) {
  const TrainingAgent& agent = *session.compiled().agent;
  const TrainingProgram& program = agent.program();
  struct Maker {
    const NodeArg* value;
    const Node* node;
  };
  std::unordered_map<int, Maker> makers;
  const auto note = [&](const ExecutionPlan& plan) {
    for (const Step& step : plan.steps)
      for (size_t i = 0; i < step.outputs.size(); ++i)
        if (step.outputs[i] >= 0) makers.try_emplace(step.outputs[i], Maker{step.node->output(i), step.node});
  };
  note(program.forward->plan());
  if (program.full_backward) note(program.full_backward->executor->plan());
  // What a value is for; a saved output is both, and it is the saving that costs.
  const ExecutionPlan* backward = program.full_backward ? &program.full_backward->executor->plan() : nullptr;
  using Slots = std::unordered_set<int>;
  const auto set_of = [](const std::vector<int>& slots) { return Slots(slots.begin(), slots.end()); };
  const std::array<std::pair<const char*, Slots>, 3> kinds{{
      {"saved", set_of(program.saved_slots)},
      {"gradient", backward ? set_of(backward->output_slots) : Slots()},
      {"output", set_of(program.forward->plan().output_slots)},
  }};
  std::vector<PeakValue> out;
  const auto add = [&](const char* half, const std::vector<HeldBytes>& all) {
    for (const HeldBytes& held : all) {
      int slot = held.slots.front();
      const char* kind = makers.count(slot) ? "temporary" : "given";
      for (auto named = kinds.rbegin(); named != kinds.rend(); ++named)
        for (int holder : held.slots)
          if (named->second.count(holder)) {
            slot = holder;
            kind = named->first;
          }
      const auto maker = makers.find(slot);
      const Node* node = maker == makers.end() ? nullptr : maker->second.node;
      out.push_back({half, node ? maker->second.value->name() : "", node ? node->op() : "", node ? node->name() : "",
                     held.bytes, kind});
    }
  };
  add("forward", agent.forward_peak().held);
  add("backward", agent.backward_peak().held);
  return out;
}

std::string stage_model(const Session& session, const std::string& stage, bool portable) {
  const CompiledModel& compiled = session.compiled();
  for (const Stage& one : compiled.stages) {
    if (one.name != stage) continue;
    const std::shared_ptr<Graph>& graph = &one == &compiled.stages.back() ? compiled.graph : one.graph;
    ORTMODULE_CHECK_ARG(graph, "the graph of stage '", stage, "' was not kept; create the session with keep_stages");
    ExportOptions options;
    options.portable = portable;
    const std::unique_ptr<Graph> other = portable ? lower_portable(*graph) : with_schema_types(*graph);
    return export_model(other ? *other : *graph, options);
  }
  fail(ErrorCode::kInvalidArgument, "there is no stage '", stage, "'");
}

namespace {

std::vector<std::pair<int, bool>> waits_of(const ExecutionPlan& plan, const std::vector<Wait>& waits) {
  std::vector<std::pair<int, bool>> out;
  for (const Wait& wait : waits) out.emplace_back(wait.notification, is_host(plan.streams[wait.stream]));
  return out;
}

// "  # 4.0 KiB, 0.1 Mflop, 12 us"
std::string noted(const PlannedStep& step) {
  double bytes = 0;
  for (const PlannedValue& out : step.outputs) bytes += std::max(0.0, out.bytes);
  std::ostringstream note;
  note << std::setprecision(3);
  const auto add = [&](double value, double unit, const char* name) {
    if (value > 0) note << (note.tellp() ? ", " : "  # ") << value / unit << " " << name;
  };
  add(bytes, 1024, "KiB");
  add(step.cost.flops, 1e6, "Mflop");
  add(step.seconds, 1e-6, "us");
  return note.str();
}

class PlanReader {
 public:
  explicit PlanReader(const SymbolTable& sizes) : sizes_(sizes) {}

  PlannedHalf read(const Executor& executor) const {
    const ExecutionPlan& plan = executor.plan();
    PlannedHalf half{plan.name, {}, {}, waits_of(plan, plan.ends)};
    for (const LogicStream& stream : plan.streams)
      half.streams.push_back(stream.device + (stream.role == LogicStream::Role::kTransfer ? ", transfers" : ""));
    for (const Step& step : plan.steps) {
      PlannedStep out{kind_name(step.kind),
                      step.stream,
                      {},
                      step.notifies,
                      step.node->provider(),
                      step.node->qualified_op(),
                      step.node->name(),
                      {},
                      {},
                      step.release,
                      cost_of(*step.node, sizes_),
                      executor.mean_seconds(half.steps.size())};
      out.waits_for = waits_of(plan, step.waits);
      for (size_t i = 0; i < step.inputs.size(); ++i) add(out.inputs, step.node->input(i), step.inputs[i]);
      for (size_t i = 0; i < step.outputs.size(); ++i) add(out.outputs, step.node->output(i), step.outputs[i]);
      half.steps.push_back(std::move(out));
    }
    return half;
  }

 private:
  void add(std::vector<PlannedValue>& values, const NodeArg* value, int slot) const {
    if (!value) return;
    const auto bytes = static_cast<double>(known_bytes(value->type(), sizes_).value_or(-1));
    values.push_back({value->name(), value->type().text(), slot, bytes});
  }

  const SymbolTable& sizes_;
};

}  // namespace

std::vector<PlannedHalf> plans_of(const Session& session, const SymbolTable& sizes) {
  const TrainingProgram& program = session.compiled().agent->program();
  const PlanReader reader(sizes);
  std::vector<PlannedHalf> halves{reader.read(*program.forward)};
  if (program.full_backward) halves.push_back(reader.read(*program.full_backward->executor));
  return halves;
}

std::string plan_text(const Session& session, const SymbolTable& sizes) {
  const TrainingProgram& program = session.compiled().agent->program();
  const PlanReader reader(sizes);
  const auto text = [&](const Executor& executor) {
    const std::vector<PlannedStep> steps = reader.read(executor).steps;
    return executor.plan().text(
        [&](const Step& step) { return noted(steps[static_cast<size_t>(&step - executor.plan().steps.data())]); });
  };
  return text(*program.forward) + (program.full_backward ? text(*program.full_backward->executor) : "");
}

MemoryForecast forecast_of(const Session& session, const SymbolTable& sizes) {
  return forecast_memory(session.compiled().agent->program(), sizes);
}

SymbolTable sizes_of(const Session& session, const std::vector<at::Tensor>& inputs) {
  SymbolTable sizes;
  session.compiled().agent->program().binding->bind(inputs, sizes);
  return sizes;
}

PlacedMemory placed_memory(const Session& session) {
  PlacedMemory out;
  const StepMemory* memory = session.compiled().agent->memory();
  const MemoryPattern pattern = memory ? memory->pattern() : MemoryPattern();
  if (pattern.step_begin.empty()) return out;
  out.steps = pattern.step_begin.size() - 1;
  // A forward without a backward has no more than its own.
  out.forward_steps = pattern.backward ? pattern.forward_steps : out.steps;
  const ExecutionPlan& forward = session.compiled().agent->program().forward->plan();
  for (const Step& step : forward.steps) out.values.push_back(first_value(*step.node));
  if (const auto backward = session.compiled().agent->backward_at(pattern.backward))
    for (const Step& step : backward->executor->plan().steps) out.values.push_back(first_value(*step.node));
  out.values.resize(out.steps);
  out.passing_bytes = pattern.arena_bytes[ArenaPool::kPassing];
  out.lasting_bytes = pattern.arena_bytes[ArenaPool::kLasting];
  // The clock of blocks counts allocations: one that ends at n has its place until allocation n is made.
  const auto step_of = [&](uint32_t allocation) {
    const auto after = std::upper_bound(pattern.step_begin.begin(), pattern.step_begin.end() - 1, allocation);
    return static_cast<size_t>(after - pattern.step_begin.begin()) - 1;
  };
  for (const PlannedBlock& block : pattern.blocks) {
    const bool to_the_end = block.lasts || block.outlives || block.end >= pattern.blocks.size();
    const size_t first = step_of(block.first);
    const char* arena = block.outlives ? "torch" : block.arena == ArenaPool::kLasting ? "lasting" : "passing";
    out.blocks.push_back({static_cast<int64_t>(block.bytes), first,
                          to_the_end ? out.steps : std::max(step_of(block.end), first + 1), arena, block.offset});
  }
  return out;
}

std::vector<ProfiledStep> take_times(const Session& session) {
  std::vector<ProfiledStep> out;
  std::unordered_map<const Node*, size_t> places;  // kinds of calls share nodes
  for (const auto& agent : session.agents()) {
    for (const StepTime& time : agent->take_times()) {
      const Node& node = *time.step->node;
      const auto [place, fresh] = places.emplace(&node, out.size());
      if (fresh) out.push_back({phase_of(node), shown_op(node), node.name(), first_value(node), 0, 0, {0, 0}});
      ProfiledStep& step = out[place->second];
      step.calls += time.calls;
      step.seconds += time.seconds;
      for (double StepCost::* what : {&StepCost::bytes, &StepCost::flops})
        step.cost.*what = step.cost.*what < 0 || time.cost.*what < 0 ? -1 : step.cost.*what + time.cost.*what;
    }
  }
  return out;
}

}  // namespace ortmodule

#include "compile/program.h"

#include <algorithm>
#include <utility>

#include "graph/value_bytes.h"
#include "records/shared_operands.h"

namespace ortmodule {
namespace {

PlanRequest request_for(const std::string& name, const PlanTarget& target) {
  PlanRequest request;
  request.name = name;
  request.device_type = target.type();
  request.order = target.order;
  request.sizes = target.sizes;
  request.reuse = target.reuse;
  request.parallel = target.parallel;
  return request;
}

bool contains(const std::vector<NodeArg*>& values, const NodeArg* value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Which outputs' gradients read a saved value.
OutputSet needed_by(const Halves& halves, const std::string& name) {
  const auto needed = halves.separate.needs.find(name);
  return needed == halves.separate.needs.end() ? OutputSet(halves.roots.y_outputs.size(), true) : needed->second;
}

// Somebody may write an input between the halves of which only a view is saved: it is kept beside that, to be looked
// at.
void keep_shown_inputs(const std::vector<NodeArg*>& saved, PlanRequest& request, KeptValues& kept,
                       TrainingProgram& program) {
  for (NodeArg* value : saved) {
    if (!value->producer()) continue;
    for (NodeArg* input : shown_inputs(value)) {
      const int slot = kept.slots.slot(*input);
      if (!request.keep[input->id()]) program.witness_slots.push_back(slot);
      request.keep[input->id()] = 1;
      program.watched_views.emplace_back(slot, kept.slots.slot(*value));
    }
  }
}

// Gives each value that backward reads a slot, and has `request` keep it.
KeptValues keep_saved(const Graph& graph, const Halves& halves, const std::vector<NodeArg*>& dxs, PlanRequest& request,
                      TrainingProgram& program) {
  KeptValues kept;
  const std::vector<NodeArg*> forward = request.outputs;
  std::vector<NodeArg*> saved = saved_for_backward(graph, dxs);
  std::erase_if(saved, [&](NodeArg* value) { return contains(halves.gradient.dys, value); });
  for (NodeArg* value : saved) {
    const int slot = kept.slots.slot(*value);
    request.keep[value->id()] = 1;
    kept.names.insert(value->name());
    program.saved_slots.push_back(slot);
    program.needed_by.push_back(needed_by(halves, value->name()));
    if (value->is_graph_input() || contains(forward, value)) program.watched_slots.push_back(slot);
    // One that only backward reads is produced by a node that no forward output needs (Shape, say).
    if (value->producer()) request.outputs.push_back(value);
  }
  keep_shown_inputs(saved, request, kept, program);
  return kept;
}

void add_input(const NodeArg& input, const SlotTable& slots, TrainingProgram& program) {
  program.input_slots.push_back(slots.find(input.name()));
  program.input_names.push_back(input.name());
}

void note_gradients(const Graph& graph, const Halves& halves, const std::vector<NodeArg*>& dxs,
                    TrainingProgram& program) {
  program.y_outputs = halves.roots.y_outputs;
  program.x_inputs = halves.roots.x_inputs;
  for (size_t y : halves.roots.y_outputs) program.y_names.push_back(graph.outputs()[y]->name());
  program.meets = halves.separate.meets;
  for (size_t k = 0; k < halves.roots.x_inputs.size(); ++k) {
    const NodeArg* dx = k < dxs.size() ? dxs[k] : nullptr;
    program.x_names.push_back(graph.inputs()[halves.roots.x_inputs[k]]->name());
    program.x_reachable.push_back(dx != nullptr);
    program.x_bytes.push_back(dx ? known_bytes(dx->type(), {}).value_or(0) : 0);
  }
}

void set_forward(ExecutionPlan plan, const PlanTarget& target, TrainingProgram& program) {
  program.forward = std::make_unique<Executor>(std::move(plan), target.device);
  if (program.forward->plan().parallel) program.parallel = std::make_unique<ParallelExecutor>(*program.forward);
}

}  // namespace

KeptValues plan_halves(std::shared_ptr<Graph> graph, const Halves& halves, const PlanTarget& target,
                       TrainingProgram& program) {
  const size_t count = halves.forward_outputs;
  const std::vector<NodeArg*> dxs = gradient_outputs(*graph, count, halves.gradient.dxs);
  PlanRequest request = request_for("forward", target);
  request.outputs = {graph->outputs().begin(), graph->outputs().begin() + static_cast<long>(count)};
  request.keep.assign(graph->value_id_bound(), 0);
  for (const NodeArg* output : request.outputs) program.output_types.push_back(output->type());
  KeptValues kept = keep_saved(*graph, halves, dxs, request, program);
  ExecutionPlan forward = make_plan(*graph, request, kept.slots);
  kept.settled = forward.settled;
  forward.output_slots.resize(count);
  forward.output_names.resize(count);
  for (const NodeArg* in : graph->inputs())
    if (!contains(halves.gradient.dys, in)) add_input(*in, kept.slots, program);
  set_forward(std::move(forward), target, program);
  program.slot_count = kept.slots.size();
  if (!dxs.empty()) program.full_backward = plan_backward(graph, halves.gradient.dys, dxs, kept, target);
  note_gradients(*graph, halves, dxs, program);
  program.graph = std::move(graph);
  return kept;
}

TrainingProgram plan_forward(std::shared_ptr<const Graph> graph, const OutputSet& mask, const PlanTarget& target) {
  PlanRequest request = request_for("forward", target);
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i]) request.outputs.push_back(graph->outputs()[i]);
  SlotTable slots;
  TrainingProgram program;
  for (const NodeArg* output : request.outputs) program.output_types.push_back(output->type());
  ExecutionPlan plan = make_plan(*graph, request, slots);
  for (const NodeArg* in : graph->inputs()) add_input(*in, slots, program);
  set_forward(std::move(plan), target, program);
  program.slot_count = slots.size();
  program.graph = std::move(graph);
  return program;
}

std::shared_ptr<BackwardProgram> plan_backward(std::shared_ptr<const Graph> graph, const std::vector<NodeArg*>& dys,
                                               const std::vector<NodeArg*>& dxs, const KeptValues& kept,
                                               const PlanTarget& target) {
  SlotTable slots = kept.slots;
  PlanRequest request = request_for("backward", target);
  request.phase = Phase::kBackward;
  request.outputs = dxs;
  request.settled = kept.settled;
  ExecutionPlan plan = make_plan(*graph, request, slots);
  auto program = std::make_shared<BackwardProgram>();
  for (const NodeArg* dy : dys) program->dy_slots.push_back(dy ? slots.find(dy->name()) : -1);
  program->executor = std::make_unique<Executor>(std::move(plan), target.device);
  program->slot_count = slots.size();
  program->graph = std::move(graph);
  return program;
}

}  // namespace ortmodule

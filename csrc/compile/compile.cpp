#include "compile/compile.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "base/status.h"
#include "gradient/gradient_graph_builder.h"
#include "kernels/aten_bridge.h"
#include "onnx/import.h"
#include "plan/constant_placement.h"
#include "plan/execution_plan.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "records/upgrade.h"
#include "runtime/constant_evaluator.h"
#include "transforms/fuse.h"
#include "transforms/inline_functions.h"
#include "transforms/pass_list.h"
#include "transforms/subgraphs.h"

namespace ortmodule {
namespace {

class StageLog {
 public:
  StageLog(std::vector<Stage>& stages, bool keep) : stages_(stages), keep_(keep) {}

  void done(const std::string& name, const Graph& graph) {
    const auto now = Clock::now();
    Stage stage{name, std::chrono::duration<double>(now - start_).count(), graph.node_count(), nullptr};
    if (keep_) stage.graph = graph.clone();
    stages_.push_back(std::move(stage));
    start_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Stage>& stages_;
  bool keep_;
  Clock::time_point start_ = Clock::now();
};

void transform(Graph& graph, PassStage stage, const CompileOptions& options) {
  TransformerManager::Options level{.level = PassLevel::kExtended};
  level.verify = options.verify;
  TransformContext context;
  context.training = options.training && stage == PassStage::kForward;
  context.options.dropout = options.dropout == "fast" ? "fast" : "exact";
  context.evaluate = evaluate_constant_node;
  for (const std::string& name : options.trainable)
    if (const NodeArg* in = graph.find(name)) context.grad_inputs.insert(in);
  make_passes(stage, level).run(graph, context);
  graph.remove_unused_initializers();
  context.grad_inputs.clear();
  share_constants_with_subgraphs(graph);
  for_all_subgraphs(graph, [&](Graph& body) {
    make_passes(stage, level).run(body, context);
    body.remove_unused_initializers();
  });
}

// Graph outputs and inputs as a request to the gradient builder; `mask` picks ys (empty: all).
struct Roots {
  std::vector<size_t> y_outputs;
  std::vector<size_t> x_inputs;
};

Roots find_roots(const Graph& graph, const std::vector<std::string>& trainable) {
  Roots roots;
  const std::unordered_set<std::string> wanted(trainable.begin(), trainable.end());
  std::vector<NodeArg*> xs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    NodeArg* in = graph.inputs()[i];
    if (!wanted.count(in->name())) continue;
    ORTMODULE_CHECK_ARG(is_floating(in->type().dtype), "the input '", in->name(), "' of type ", in->type().text(),
                        " cannot have a gradient");
    roots.x_inputs.push_back(i);
    xs.push_back(in);
  }
  refuse_gradients_through_containers(graph, xs);
  const std::vector<char> depends = differentiable_values(graph, xs);
  for (size_t i = 0; i < graph.outputs().size(); ++i)
    if (depends[graph.outputs()[i]->id()]) roots.y_outputs.push_back(i);
  return roots;
}

GradientResult differentiate(Graph& graph, const Roots& roots, const std::vector<bool>& mask) {
  GradientRequest request;
  std::vector<NodeArg*> outputs = graph.outputs();
  for (size_t k = 0; k < roots.y_outputs.size(); ++k)
    if (mask.empty() || mask[k]) request.ys.push_back(outputs[roots.y_outputs[k]]);
  for (size_t i : roots.x_inputs) request.xs.push_back(graph.inputs()[i]);
  GradientResult result = build_gradient(graph, request);
  for (NodeArg* dx : result.dxs)
    if (dx) graph.add_output(dx);
  return result;
}

std::vector<NodeArg*> first_outputs(const Graph& graph, size_t count) {
  return {graph.outputs().begin(), graph.outputs().begin() + static_cast<long>(count)};
}

// Gradient outputs after passes may have replaced them: the graph's outputs behind the first `forward` ones.
std::vector<NodeArg*> gradient_outputs(const Graph& graph, size_t forward, const std::vector<NodeArg*>& dxs) {
  std::vector<NodeArg*> out;
  size_t next = forward;
  for (NodeArg* dx : dxs) out.push_back(dx ? graph.outputs()[next++] : nullptr);
  return out;
}

// What the caches hold is not worth a node that runs again. A free size may be small now and large later.
constexpr double kLittle = 8.0 * (1 << 20);

// Chooses what forward keeps; `trainable` inputs are leaves that must not change before backward anyway.
RecomputeResult minimize_kept(Graph& graph, const Roots& roots, const CompileOptions& options) {
  if (options.memory_budget && *options.memory_budget < 0) return {};
  RecomputeOptions request;
  request.sizes = options.sizes;
  request.budget = options.memory_budget;
  request.little = options.sizes.empty() ? kLittle : 0;
  for (size_t i : roots.x_inputs) request.readable.insert(graph.inputs()[i]);
  for (const std::string& name : options.weights)
    if (const NodeArg* weight = graph.find(name); weight && weight->is_graph_input()) request.readable.insert(weight);
  return recompute(graph, request);
}

bool fuses(const CompileOptions& options) { return options.fusion && options.device.is_cpu(); }

// Size of a value in bytes; 0 where a dim is symbolic.
int64_t known_bytes(const TypeInfo& type) {
  if (!type.shape) return 0;
  int64_t bytes = static_cast<int64_t>(c10::elementSize(to_scalar_type(type.dtype)));
  for (const Dim& dim : *type.shape) {
    if (!dim.is_known()) return 0;
    bytes *= dim.value();
  }
  return bytes;
}

ExecutionPlan backward_plan(const Graph& graph, const std::vector<NodeArg*>& dxs, SlotTable& slots,
                            const std::string& device_type) {
  PlanRequest request;
  request.name = "backward";
  request.phase = Phase::kBackward;
  request.outputs = dxs;
  request.device_type = device_type;
  return make_plan(graph, request, slots);
}

// Whether value `name` means the same in both graphs: an input, or the same operator on inputs of the same names.
bool same_value(const Graph& a, const Graph& b, const std::string& name) {
  const NodeArg *x = a.find(name), *y = b.find(name);
  if (!x || !y || !x->producer() != !y->producer()) return false;
  if (!x->producer()) return true;
  const Node &p = *x->producer(), &q = *y->producer();
  if (p.op() != q.op() || x->output_index() != y->output_index() || p.inputs().size() != q.inputs().size())
    return false;
  for (size_t i = 0; i < p.inputs().size(); ++i) {
    if (!p.input(i) != !q.input(i)) return false;
    if (p.input(i) && !p.input(i)->constant() && p.input(i)->name() != q.input(i)->name()) return false;
  }
  return true;
}

std::shared_ptr<BackwardProgram> make_backward(std::shared_ptr<const Graph> graph, const std::vector<NodeArg*>& dys,
                                               const std::vector<NodeArg*>& dxs, SlotTable& slots, c10::Device device,
                                               const std::string& device_type) {
  auto program = std::make_shared<BackwardProgram>();
  ExecutionPlan plan = backward_plan(*graph, dxs, slots, device_type);
  for (const NodeArg* dy : dys) program->dy_slots.push_back(dy ? slots.find(dy->name()) : -1);
  program->executor = std::make_unique<Executor>(std::move(plan), device);
  program->slot_count = slots.size();
  program->graph = std::move(graph);
  return program;
}

// Which of the first `count` slots a plan reads or hands out.
std::vector<char> slots_read(const ExecutionPlan& plan, size_t count) {
  std::vector<char> read(count, 0);
  const auto note = [&](int slot) {
    if (slot >= 0 && static_cast<size_t>(slot) < count) read[slot] = 1;
  };
  for (const LogicStream& stream : plan.streams)
    for (const Step& step : stream.steps)
      for (int slot : step.inputs) note(slot);
  for (int slot : plan.output_slots) note(slot);
  return read;
}

}  // namespace

CompiledModel compile(const void* model, size_t size, const CompileOptions& options) {
  CompiledModel compiled;
  StageLog log(compiled.stages, options.keep_stages);
  const std::string device_type = c10::DeviceTypeName(options.device.type(), true);

  std::shared_ptr<Graph> graph = import_model(model, size, {});
  log.done("imported", *graph);
  upgrade(*graph);
  inline_functions(*graph);
  share_constants_with_subgraphs(*graph);
  resolve(*graph);
  log.done("resolved", *graph);

  const size_t forward_outputs = graph->outputs().size();
  for (const NodeArg* in : graph->inputs()) compiled.input_names.push_back(in->name());
  for (const NodeArg* out : graph->outputs()) compiled.output_names.push_back(out->name());

  TrainingProgram program;
  program.matmul = matmul_provider(options.matmul);
  transform(*graph, PassStage::kForward, options);
  resolve(*graph);
  program.binding = std::make_unique<InputBinding>(graph->inputs());
  Roots roots;
  if (options.training) roots = find_roots(*graph, options.trainable);
  log.done("optimized_pre_grad", *graph);

  std::shared_ptr<const Graph> undifferentiated, unfused;
  std::vector<NodeArg*> dxs;
  GradientResult gradient;
  const size_t input_count = graph->inputs().size();
  if (!roots.y_outputs.empty()) {
    if (roots.y_outputs.size() > 1) undifferentiated = graph->clone();
    gradient = differentiate(*graph, roots, {});
    log.done("gradient", *graph);
    transform(*graph, PassStage::kJoint, options);
    resolve(*graph, {.infer = false});
    log.done("optimized", *graph);
    compiled.recomputed = minimize_kept(*graph, roots, options);
    resolve(*graph, {.infer = false});
    log.done("recompute", *graph);
  }
  SeparateBackwards separate;
  if (!roots.y_outputs.empty()) separate = separate_backwards(*graph, gradient.dys);
  if (undifferentiated) unfused = graph->clone();
  if (fuses(options)) {
    compiled.fused = fuse(*graph);
    resolve(*graph, {.infer = false});
    log.done("fusion", *graph);
  }
  if (!options.device.is_cpu()) separate_constants(*graph);
  dxs = gradient_outputs(*graph, forward_outputs, gradient.dxs);

  auto slots = std::make_shared<SlotTable>();
  const std::vector<NodeArg*> saved = saved_for_backward(*graph, dxs);
  PlanRequest request;
  request.name = "forward";
  request.outputs = first_outputs(*graph, forward_outputs);
  request.keep.assign(graph->value_id_bound(), 0);
  request.device_type = device_type;
  std::unordered_set<std::string> saved_names;
  for (const NodeArg* value : saved) {
    const bool is_dy = std::find(gradient.dys.begin(), gradient.dys.end(), value) != gradient.dys.end();
    if (is_dy) continue;
    request.keep[value->id()] = 1;
    saved_names.insert(value->name());
    program.saved_slots.push_back(slots->slot(*value));
    const auto needed = separate.needs.find(value->name());
    program.needed_by.push_back(needed == separate.needs.end() ? OutputSet(roots.y_outputs.size(), true)
                                                               : needed->second);
    const bool visible = value->is_graph_input() ||
                         std::find(request.outputs.begin(), request.outputs.end(), value) != request.outputs.end();
    if (visible) program.watched_slots.push_back(slots->slot(*value));
  }
  // A saved value that only backward reads is produced by a node that no forward output needs (Shape, say).
  for (NodeArg* value : saved)
    if (saved_names.count(value->name()) && value->producer()) request.outputs.push_back(value);
  ExecutionPlan forward = make_plan(*graph, request, *slots);
  forward.output_slots.resize(forward_outputs);
  forward.output_names.resize(forward_outputs);
  for (size_t i = 0; i < input_count; ++i) program.input_slots.push_back(slots->find(graph->inputs()[i]->name()));

  if (!dxs.empty()) {
    SlotTable backward_slots = *slots;
    program.full_backward = make_backward(graph, gradient.dys, dxs, backward_slots, options.device, device_type);
  }
  program.forward = std::make_unique<Executor>(std::move(forward), options.device);
  program.slot_count = slots->size();
  program.graph = graph;
  program.y_outputs = roots.y_outputs;
  program.x_inputs = roots.x_inputs;
  program.meets = separate.meets;
  for (size_t k = 0; k < roots.x_inputs.size(); ++k) {
    program.x_names.push_back(graph->inputs()[roots.x_inputs[k]]->name());
    program.x_reachable.push_back(k < dxs.size() && dxs[k]);
    program.x_bytes.push_back(k < dxs.size() && dxs[k] ? known_bytes(dxs[k]->type()) : 0);
  }
  if (undifferentiated) {
    const size_t forward_slots = slots->size();
    // Null when it cannot be had from the values of these names.
    const auto compile_from = [=](const OutputSet& mask,
                                  const std::unordered_set<std::string>& kept) -> std::shared_ptr<BackwardProgram> {
      std::shared_ptr<Graph> copy = undifferentiated->clone();
      GradientResult partial = differentiate(*copy, roots, mask);
      transform(*copy, PassStage::kJoint, options);
      resolve(*copy, {.infer = false});
      if (!recompute_from(*copy, kept)) return nullptr;
      resolve(*copy, {.infer = false});
      for (const NodeArg* value : saved_for_backward(*copy, gradient_outputs(*copy, forward_outputs, partial.dxs))) {
        if (std::find(partial.dys.begin(), partial.dys.end(), value) != partial.dys.end()) continue;
        if (!kept.count(value->name()) || !same_value(*unfused, *copy, value->name())) return nullptr;
      }
      if (fuses(options)) {
        fuse(*copy);
        resolve(*copy, {.infer = false});
      }
      if (!options.device.is_cpu()) separate_constants(*copy);
      const std::vector<NodeArg*> partial_dxs = gradient_outputs(*copy, forward_outputs, partial.dxs);
      // dys of the variant, spread to all ys.
      std::vector<NodeArg*> dys(mask.size(), nullptr);
      for (size_t k = 0, next = 0; k < mask.size(); ++k)
        if (mask[k]) dys[k] = partial.dys[next++];
      SlotTable variant_slots = *slots;
      std::shared_ptr<BackwardProgram> variant =
          make_backward(copy, dys, partial_dxs, variant_slots, options.device, device_type);
      variant->reads = slots_read(variant->executor->plan(), forward_slots);
      return variant;
    };
    program.compile_backward = [=](const OutputSet& mask) {
      // What only other outputs need may be freed before this backward: it is read in the last resort.
      std::unordered_set<std::string> needed;
      for (const std::string& name : saved_names) {
        const auto it = separate.needs.find(name);
        bool wanted = it == separate.needs.end();
        for (size_t k = 0; k < mask.size() && !wanted; ++k) wanted = mask[k] && it->second[k];
        if (wanted) needed.insert(name);
      }
      std::shared_ptr<BackwardProgram> variant = compile_from(mask, needed);
      return variant || needed.size() == saved_names.size() ? variant : compile_from(mask, saved_names);
    };
  }
  log.done("planned", *graph);

  compiled.forward_nodes = program.forward->plan().step_count();
  compiled.backward_nodes = program.full_backward ? program.full_backward->executor->plan().step_count() : 0;
  compiled.graph = graph;
  compiled.agent = std::make_shared<TrainingAgent>(std::move(program), options.device);
  return compiled;
}

}  // namespace ortmodule

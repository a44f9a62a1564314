#include "compile/compile.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "base/registration.h"
#include "compile/backward_variants.h"
#include "compile/program.h"
#include "compile/result_owners.h"
#include "graph/subgraph.h"
#include "onnx/import.h"
#include "placement/early_copies.h"
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/join_launches.h"
#include "transforms/late_weights.h"
#include "transforms/split_batch_norm.h"
#include "transforms/split_collectives.h"

namespace ortmodule {
namespace {

PlanTarget plan_target(const CompileOptions& options) {
  return {options.device, options.order, options.sizes, options.memory_reuse,
          options.parallel && !options.training && options.device.is_cpu()};
}

void note_passes(PassStage stage, std::vector<PassRecord> records, CompiledModel& compiled) {
  for (PassRecord& record : records) compiled.passes.emplace_back(stage_name(stage), std::move(record));
}

// What the caches hold is not worth a node that runs again. A free size may be small now and large later.
constexpr double kLittle = 8.0 * (1 << 20);

// Chooses what forward keeps; `trainable` inputs are leaves that must not change before backward anyway.
RecomputeResult minimize_kept(Graph& graph, const Roots& roots, const CompileOptions& options,
                              const Providers& providers) {
  if (options.memory_budget && *options.memory_budget < 0) return {};
  RecomputeOptions request;
  request.sizes = options.sizes;
  request.budget = options.memory_budget;
  request.prices = providers.order.front()->prices();
  request.little = options.sizes.empty() ? kLittle : 0;
  for (size_t i : roots.x_inputs) request.readable.insert(graph.inputs()[i]);
  for (const std::string& name : options.weights)
    if (const NodeArg* weight = graph.find(name); weight && weight->is_graph_input()) request.readable.insert(weight);
  const RecomputeResult result = recompute(graph, request);
  resolve(graph, {.infer = false});
  return result;
}

std::string home_of(c10::Device device) {
  return device.is_cpu() ? kHost : c10::Device(device.type(), std::max<c10::DeviceIndex>(device.index(), 0)).str();
}

// A device by its whole name ("cuda" is the first one); none where torch knows none of that name.
std::optional<std::string> device_name(const std::string& name) {
  try {
    return home_of(c10::Device(name));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

Providers providers_of(const CompileOptions& options) {
  std::vector<ProviderSpec> specs = options.providers;
  for (ProviderSpec& spec : specs) spec.name = device_name(spec.name).value_or(spec.name);
  Providers providers = make_providers(specs, home_of(options.device));
  for (const auto& provider : providers.order) {
    ORTMODULE_CHECK_ARG(device_name(provider->location()), "'", provider->name(),
                        "' is neither a registered provider nor a device that torch knows");
  }
  return providers;
}

PassSettings pass_settings(const CompileOptions& options) {
  PassSettings settings;
  settings.manager.level = options.level;
  settings.manager.verify = options.verify;
  settings.training = options.training;
  settings.counted_dropout = options.dropout == "fast";
  settings.whole_masks = options.whole_masks;
  settings.manager.listener = options.pass_listener;
  settings.trainable = options.trainable;
  settings.choice = options.passes;
  settings.prices = providers_of(options).order.front()->prices();
  settings.sizes = options.sizes;
  return settings;
}

// Of a provider by its name; nodes that were not placed are the first one's.
Prices prices_at(const Providers& providers, const std::string& name) {
  for (const auto& provider : providers.order)
    if (provider->name() == name) return provider->prices();
  return providers.order.front()->prices();
}

// Whether the first provider's device takes longer to begin a kernel than to run a small one, and runs programs.
bool joins_launches(const CompileOptions& options, const Prices& prices) {
  return options.fusion && prices.launch_bytes > 0 && prices.runs_programs;
}

std::vector<PassRecord> transform_jointly(Graph& graph, const CompileOptions& options) {
  std::vector<PassRecord> records = transform(graph, PassStage::kJoint, pass_settings(options));
  if (joins_launches(options, providers_of(options).order.front()->prices())) split_batch_norm(graph);
  resolve(graph, {.infer = false});
  return records;
}

// What is no matter of the operators' meaning: who runs them, and fused kernels.
struct Finished {
  PlacementResult placed;
  FusionResult fused;
};

Finished finish(Graph& graph, const CompileOptions& options, size_t forward_outputs, StageLog* log = nullptr) {
  Finished done;
  const Providers providers = providers_of(options);
  if (joins_launches(options, providers.order.front()->prices())) {
    join_launches(graph);
    delay_weight_gradients(graph);
    resolve(graph, {.infer = false});
  }
  if (!providers.only_host()) {
    done.placed = place(graph, providers, forward_outputs);
    begin_copies_early(graph);
    resolve(graph, {.infer = false});
    if (log) log->done("placed", graph);
  }
  if (options.fusion) {
    done.fused = fuse(graph, [&](const std::string& provider) { return prices_at(providers, provider); });
    resolve(graph, {.infer = false});
    if (log) log->done("fusion", graph);
  }
  split_collectives(graph, options.sizes);
  return done;
}

void differentiate_whole(Graph& graph, Halves& halves, const CompileOptions& options, CompiledModel& compiled,
                         StageLog& log) {
  halves.gradient = differentiate(graph, halves.roots, {});
  log.done("gradient", graph);
  note_passes(PassStage::kJoint, transform_jointly(graph, options), compiled);
  log.done("optimized", graph);
  compiled.recomputed = minimize_kept(graph, halves.roots, options, providers_of(options));
  log.done("recompute", graph);
  halves.separate = separate_backwards(graph, halves.gradient.dys);
}

BackwardCompiler variants_of(std::shared_ptr<const Graph> undifferentiated, std::shared_ptr<const Graph> unfused,
                             const Halves& halves, KeptValues kept, const CompileOptions& options) {
  BackwardVariants::Steps steps{[=](Graph& graph) { transform_jointly(graph, options); },
                                [=, count = halves.forward_outputs](Graph& graph) { finish(graph, options, count); }};
  const auto variants = std::make_shared<const BackwardVariants>(std::move(undifferentiated), std::move(unfused),
                                                                 halves, std::move(kept), plan_target(options), steps);
  return [variants](const OutputSet& mask) { return variants->compile(mask); };
}

// What both programs of a session without a gradient and those of a training session have.
void complete(TrainingProgram& program, const Graph& graph, const CompileOptions& options) {
  program.matmul = matmul_provider(options.matmul);
  program.plans_memory = options.memory_pattern;
  program.limits = options.import.limits;
  program.binding = std::make_unique<InputBinding>(graph.inputs());
}

FetchCompiler fetches_of(std::shared_ptr<const Graph> graph, CompileOptions options, ResultOwners owners) {
  const Limits limits = options.import.limits;
  options.import = {};  // what was read is in the graph
  options.import.limits = limits;
  options.passes = {};
  options.pass_listener = nullptr;
  return [graph = std::move(graph), options = std::move(options), owners = std::move(owners)](const OutputSet& mask) {
    TrainingProgram program = plan_forward(graph, mask, plan_target(options));
    complete(program, *graph, options);
    program.result_owners = owners_of(program.forward->plan().output_names, owners);
    return std::make_shared<TrainingAgent>(std::move(program), options.device);
  };
}

void add_draws(const Graph& graph, const std::string& prefix, std::set<std::string>& draws) {
  graph.for_each([&](Node& node) {
    const bool stream = node.find_attribute("stream");
    if (stream || (node.record() && node.record()->has(kRandom) && !node.find_attribute("seed")))
      draws.insert(prefix + node.qualified_op() + (stream ? str(" ", node.get_int("stream", 0)) : ""));
    for_each_subgraph(node, [&](const std::string& name, const Graph& body) {
      add_draws(body, str(prefix, node.name(), ".", name, ": "), draws);
    });
  });
}

template <typename Values>
std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> names;
  for (const NodeArg* value : values) names.push_back(value->name());
  return names;
}

CompiledModel compile_with(std::string_view model, const CompileOptions& options, GraphHistory* history) {
  for (const std::string& error : take_registration_errors()) fail(ErrorCode::kInternal, error);
  check_choice(options.passes);
  CompiledModel compiled;
  const Allowance::Scope limited(std::make_shared<Allowance>(options.import.limits));
  StageLog log(options.keep_stages, history);
  const std::shared_ptr<Graph> graph = imported(model, options.import, log, &compiled.info);
  compiled.input_names = names_of(graph->inputs());
  compiled.output_names = names_of(graph->outputs());
  const ResultOwners owners = take_result_owners(*graph);

  note_passes(PassStage::kForward, transform(*graph, PassStage::kForward, pass_settings(options)), compiled);
  resolve(*graph);
  add_draws(*graph, "", compiled.draws);
  TrainingProgram program;
  complete(program, *graph, options);
  Halves halves;
  halves.forward_outputs = graph->outputs().size();
  if (options.training) halves.roots = find_roots(*graph, options.trainable);
  log.done("optimized_pre_grad", *graph);

  std::shared_ptr<const Graph> undifferentiated, unfused;
  if (halves.roots.y_outputs.size() > 1) undifferentiated = graph->clone();
  if (!halves.roots.y_outputs.empty()) differentiate_whole(*graph, halves, options, compiled, log);
  if (undifferentiated) unfused = graph->clone();
  const Finished finished = finish(*graph, options, halves.forward_outputs, &log);
  compiled.fused = finished.fused;
  compiled.placed = finished.placed;
  KeptValues kept = plan_halves(graph, halves, plan_target(options), program);
  program.result_owners = owners_of(program.forward->plan().output_names, owners);
  if (undifferentiated)
    program.compile_backward = variants_of(undifferentiated, unfused, halves, std::move(kept), options);
  log.done("planned", *graph);

  compiled.forward_nodes = program.forward->step_count();
  compiled.backward_nodes = program.full_backward ? program.full_backward->executor->step_count() : 0;
  compiled.graph = graph;
  compiled.agent = std::make_shared<TrainingAgent>(std::move(program), options.device);
  if (halves.roots.y_outputs.empty()) compiled.compile_fetches = fetches_of(graph, options, owners);
  compiled.stages = log.take();
  return compiled;
}

}  // namespace

CompiledModel compile(std::string_view model, const CompileOptions& options) {
  if (!options.keep_history) return compile_with(model, options, nullptr);
  const auto history = std::make_shared<GraphHistory>(options.pass_listener);
  CompileOptions followed = options;
  followed.pass_listener = history;
  CompiledModel compiled = compile_with(model, followed, history.get());
  history->close();
  compiled.history = history;
  return compiled;
}

}  // namespace ortmodule

#include "autograd/module_backward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

#include "autograd/batched_gradients.h"
#include "autograd/gradient_writer.h"
#include "autograd/node_support.h"
#include "autograd/result_nodes.h"
#include "base/status.h"
#include "runtime/kernel_clock.h"
#include "runtime/torch_error.h"

namespace ortmodule {

using torch::autograd::AnomalyMode;
using torch::autograd::AutogradMeta;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

constexpr const char* kSecondBackward =
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward.";

using ModulePtr =
    decltype(make_node<ModuleBackward>(std::shared_ptr<StepBackward>(), std::vector<size_t>(), size_t{}, true));

// Another holder of the accumulator is another path to the leaf, which waits for our edge, or somebody who may hook it;
// `holders`: how many it has of us.
bool has_other_holder(const Edge& edge, size_t holders) {
  return static_cast<size_t>(edge.function.use_count()) > holders;
}

// Whether anybody but the engine waits for this leaf's gradient.
bool is_watched(const Edge& edge, const AutogradMeta& leaf, size_t holders) {
  auto& accumulator = *edge.function;
  return has_other_holder(edge, holders) || !accumulator.pre_hooks().empty() || !accumulator.post_hooks().empty() ||
         !leaf.hooks_.empty() || leaf.post_acc_grad_hooks_;
}

// Whether several leaves have hooks that a user sees, and may tell the order of: on the leaf, or on its accumulator
// where they are Python's (those of DDP are not).
bool are_hooked(const std::vector<const at::Tensor*>& leaves, const edge_list& edges) {
  size_t hooked = 0;
  for (size_t k = 0; k < leaves.size(); ++k) {
    if (!leaves[k] || !edges[k].is_valid()) continue;
    const AutogradMeta& meta = *torch::autograd::impl::get_autograd_meta(*leaves[k]);
    auto& accumulator = *edges[k].function;
    const bool on_node = any_of_python(accumulator.pre_hooks()) || any_of_python(accumulator.post_hooks());
    if ((on_node || !meta.hooks_.empty() || meta.post_acc_grad_hooks_) && ++hooked > 1) return true;
  }
  return false;
}

// The gradients of each segment where each that somebody gets has one of its own, in this order.
std::vector<std::vector<size_t>> one_by_one(const edge_list& edges, const std::vector<size_t>& order) {
  std::vector<std::vector<size_t>> parts(1);
  bool taken = false;
  for (size_t k : order) {
    if (taken && edges[k].is_valid()) parts.emplace_back();
    taken = taken || edges[k].is_valid();
    parts.back().push_back(k);
  }
  return parts;
}

// The gradients of each node of a step's chain; none where one node has all of them, as when nobody waits.
std::vector<std::vector<size_t>> segments_of(const StepEdges& all, const std::vector<size_t>& segments,
                                             const HookOrder& hook_order, bool hooked) {
  const size_t count = segments.empty() ? 1 : *std::max_element(segments.begin(), segments.end()) + 1;
  bool watched = hooked;
  for (size_t k = 0; count > 1 && k < segments.size() && !watched; ++k)
    watched = all.leaves[k] && is_watched(all.edges[k], *torch::autograd::impl::get_autograd_meta(*all.leaves[k]),
                                          (*all.kept)[k] ? 2 : 1);
  if (watched && hook_order && (hooked || are_hooked(all.leaves, all.edges))) return one_by_one(all.edges, *hook_order);
  if (!watched) return {};
  std::vector<std::vector<size_t>> parts(count);
  for (size_t k = 0; k < segments.size(); ++k) parts[segments[k]].push_back(k);
  return parts;
}

// Whether the leaf's gradient is to be of another type than the leaf.
template <typename Meta>
bool wants_other_type(const at::Tensor& leaf, const Meta& meta) {
  if constexpr (requires { meta.grad_dtype_.has_value() || meta.allow_grad_dtype_mismatch_; })
    if (!meta.grad_dtype_ && !meta.allow_grad_dtype_mismatch_) return false;
  return leaf.grad_dtype() != leaf.scalar_type();
}

struct CutEdges : torch::autograd::FunctionPostHook {
  explicit CutEdges(ModuleBackward* node) : node(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node->restore_edges();
    if (outputs.size() <= node->shown()) return outputs;
    return {outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(node->shown())};
  }
  ModuleBackward* node;  // owns this hook
};

}  // namespace

void ModuleBackward::set_edges(StepEdges edges, std::shared_ptr<KeptEdges> kept_edges) {
  set_next_edges(std::move(edges.edges));
  leaves_ = std::move(edges.leaves);
  impls_ = std::move(edges.impls);
  kept_ = std::move(edges.kept);
  kept_edges_ = std::move(kept_edges);
}

ModuleBackward::~ModuleBackward() {
  if (!returns_all()) return;
  restore_edges();
  put_in_order();
  kept_edges_->give_back({std::move(next_edges()), std::move(leaves_), std::move(impls_), std::move(kept_)});
}

void ModuleBackward::restore_edges() {
  if (!hidden_edges_.empty()) next_edges() = std::move(hidden_edges_);
  hidden_edges_.clear();
}

variable_list ModuleBackward::without_empty(variable_list results) {
  std::vector<size_t> order, cut;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool empty = i < count_ && !results[i].defined() && leaves_[i] && next_edge(i).is_valid();
    (empty && !has_other_holder(next_edge(i), holders(gradient_of(i))) ? cut : order).push_back(i);
  }
  const bool moved = put_in_hook_order(order);
  if (cut.empty() && !moved) return results;
  shown_ = order.size();
  order.insert(order.end(), cut.begin(), cut.end());
  edge_list edges;
  variable_list ordered;
  for (size_t i : order) {
    edges.push_back(std::move(next_edges()[i]));
    ordered.push_back(std::move(results[i]));
  }
  next_edges() = std::move(edges);
  order_ = std::move(order);
  return ordered;
}

bool ModuleBackward::put_in_hook_order(std::vector<size_t>& shown) const {
  if (!returns_all() || !step_->hook_order || !are_hooked(leaves_, next_edges())) return false;
  std::vector<char> is_shown(count_, false);
  for (size_t k : shown) is_shown[k] = true;
  std::vector<size_t> leaves, nodes, none;
  for (size_t k : *step_->hook_order)
    if (is_shown[k]) (!next_edge(k).is_valid() ? none : leaves_[k] ? leaves : nodes).push_back(k);
  // The engine's queue is a heap in which all leaves are equal and before any other node: which of what is pushed comes
  // when is found on one like it.
  const size_t count = leaves.size(), pushed = count + nodes.size();
  const auto later = [&](size_t a, size_t b) { return a >= count && b < count; };
  std::vector<size_t> heap;
  shown.assign(count, 0);
  for (size_t i = 0; i < pushed; ++i) {
    heap.push_back(i);
    std::push_heap(heap.begin(), heap.end(), later);
  }
  for (size_t k : leaves) {
    std::pop_heap(heap.begin(), heap.end(), later);
    shown[heap.back()] = k;
    heap.pop_back();
  }
  shown.insert(shown.end(), nodes.begin(), nodes.end());
  shown.insert(shown.end(), none.begin(), none.end());
  return true;
}

void ModuleBackward::put_in_order() {
  shown_ = SIZE_MAX;
  if (order_.empty()) return;
  edge_list edges(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) edges[order_[i]] = std::move(next_edges()[i]);
  next_edges() = std::move(edges);
  order_.clear();
}

void ModuleBackward::release_variables() {
  if (!first_) return;
  const std::lock_guard<std::mutex> lock(step_->mutex);
  if (step_->release()) step_->given.reset();
}

at::Tensor* ModuleBackward::direct_slot(size_t edge, size_t gradient) const {
  if (!leaves_[edge]) return nullptr;
  const at::Tensor& leaf = *leaves_[edge];
  auto* const meta = static_cast<AutogradMeta*>(leaf.unsafeGetTensorImpl()->autograd_meta());
  if (!meta || is_watched(next_edge(edge), *meta, holders(gradient)) || !meta->requires_grad_ ||
      wants_other_type(leaf, *meta))
    return nullptr;
  at::Tensor& existing = meta->grad_;
  const bool fits =
      !existing.defined() || (existing.layout() == at::kStrided && existing.scalar_type() == leaf.scalar_type() &&
                              existing.device() == leaf.device() && !existing.requires_grad());
  return fits ? &existing : nullptr;
}

StepBackward::Progress ModuleBackward::take_progress(const variable_list& grads) {
  const std::lock_guard<std::mutex> lock(step_->mutex);
  if (first_) {
    StepBackward::Progress progress = step_->begin(grads, torch::autograd::get_current_graph_task_keep_graph());
    if (!returns_all()) progress.early.resize(step_->agent->program().x_inputs.size());
    return progress;
  }
  const auto node = step_->progress.extract(torch::autograd::get_current_graph_task_id());
  ORTMODULE_CHECK(!node.empty(), kInternal, "a segment of the backward runs before the one that it follows");
  return std::move(node.mapped());
}

void ModuleBackward::leave_progress(StepBackward::Progress progress) {
  if (!has_next()) return;
  // With autograd.grad or inputs= the engine goes only where a gradient is wanted.
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted && !wanted->empty()) {
    const auto it = wanted->find(next_edges().back().function.get());
    if (it == wanted->end() || !it->second.should_execute()) return;
  }
  const std::lock_guard<std::mutex> lock(step_->mutex);
  step_->progress[torch::autograd::get_current_graph_task_id()] = std::move(progress);
}

variable_list ModuleBackward::apply(variable_list&& grads) {
  try {
    return differentiated(std::move(grads));
  } catch (const TypedError& error) {  // the engine knows PyTorch's alone
    throw_as_torch(error);
  }
}

variable_list ModuleBackward::differentiated(variable_list&& grads) {
  const KernelClock::NodeScope clock;
  put_in_order();
  idle_.emplace(*kept_edges_, kept_);
  const auto idle_again = c10::make_scope_exit([&] { idle_.reset(); });
  if (first_ && step_->results)
    if (const auto look = step_->take_look(); look && look->gradients) return apply_looked(grads, *look);
  if (any_batched(grads)) return apply_batched(grads);
  if (at::GradMode::is_enabled()) return apply_with_history(grads);
  StepBackward::Progress progress = take_progress(grads);
  if (!progress.run) return hand_on(std::move(progress));
  TrainingAgent& agent = *progress.agent;
  const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
  // The engine looks for NaN in what it is handed.
  const bool looked_at = AnomalyMode::is_enabled() && AnomalyMode::should_check_nan();
  const bool plain = exec_info && exec_info->empty() && !looked_at;
  const bool all = returns_all();
  std::vector<size_t> place(progress.early.size(), SIZE_MAX);  // gradient -> edge, where this node has not all of them
  for (size_t i = 0; i < gradients_.size(); ++i) place[gradients_[i]] = i;
  // Where a gradient may go is found when it is there: what tells it and what is written are near in memory.
  std::vector<char> written(count_, false);
  variable_list results;
  GradientWriter writer(count_);
  const OutputSink sink = [&](size_t index, at::Tensor&& value) {
    const size_t edge = all ? index : place[index];
    if (edge == SIZE_MAX) {
      progress.early[index] = std::move(value);
    } else if (at::Tensor* slot = plain ? direct_slot(edge, index) : nullptr;
               slot && writer.write(*leaves_[edge], *slot, value)) {
      written[edge] = true;
    } else if (next_edge(edge).is_valid()) {
      if (results.empty()) results.resize(num_outputs());
      results[edge] = std::move(value);
    }
  };
  for (size_t index : gradients_)
    if (progress.early[index].defined()) sink(index, std::move(progress.early[index]));
  size_t end = SIZE_MAX;
  if (has_next() && progress.run->program) {
    const std::vector<size_t>& ready = progress.run->program->executor->ready_after();
    end = 0;
    for (size_t index : gradients_) end = std::max(end, ready[index]);
  }
  agent.advance(*progress.run, end, sink);
  bool all_direct = plain && !has_next() && results.empty();
  for (size_t i = 0; all_direct && i < count_; ++i)
    all_direct = written[i] || !next_edge(i).is_valid() || direct_slot(i, gradient_of(i));
  if (!all_direct) results.resize(num_outputs());
  if (has_next()) results.back() = signal();
  leave_progress(std::move(progress));
  progress = {};
  writer.finish();
  if (!all_direct) return without_empty(std::move(results));
  hidden_edges_ = std::move(next_edges());
  next_edges().clear();
  return {};
}

// The first node computes all gradients; the others hand on theirs.
variable_list ModuleBackward::apply_with_history(const variable_list& grads) {
  if (!first_) return hand_on(take_progress(grads));
  StepBackward::Progress engine;  // which refuses what was written since, and frees what a backward frees
  {
    const at::NoGradGuard no_grad;
    engine = take_progress(grads);
  }
  StepBackward::Progress progress;
  progress.early = with_history(grads, engine);
  return hand_on(std::move(progress));
}

variable_list ModuleBackward::apply_looked(const variable_list& grads, const StepBackward::Look& look) {
  StepBackward::Progress progress;
  progress.early = look.gradients({grads, look.looked}, nullptr);
  if (!any_batched(grads) && !torch::autograd::get_current_graph_task_keep_graph()) {
    const at::NoGradGuard no_grad;
    take_progress(grads);  // frees what the engine's backward would have freed
  }
  return hand_on(std::move(progress));
}

variable_list ModuleBackward::with_history(const variable_list& grads, const StepBackward::Progress& engine) {
  const HigherOrder::Dxs dxs = [&] { return step_->engine_gradients(engine); };
  HigherOrder::Asked asked{grads};
  const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
  for (size_t i = 0; i < count_ && returns_all() && exec_info && !exec_info->empty(); ++i) {
    const auto it = exec_info->find(next_edge(i).function.get());
    asked.wanted.push_back(it != exec_info->end() && it->second.should_execute());
  }
  return step_->run_again(false)(asked, &dxs);
}

HigherOrder::Gradients StepBackward::run_again(bool looked) const {
  ORTMODULE_CHECK(!is_freed(), kRuntime, kSecondBackward);
  ORTMODULE_CHECK(higher && given, kUnsupported,
                  looked
                      ? "the gradient that comes to a result of ORTModule through another result is not the engine's "
                        "to give"
                      : "ORTModule's backward cannot be differentiated again (create_graph=True)",
                  ", and its options allow no fallback to PyTorch; call the wrapped module itself (model.module)");
  higher->expected = higher->expected || !looked;
  return higher->repeat(given->lock(), looked);
}

variable_list StepBackward::engine_gradients(const Progress& progress) const {
  const at::NoGradGuard no_grad;
  variable_list dxs(agent->program().x_inputs.size());
  progress.agent->advance(*progress.run, SIZE_MAX, [&](size_t i, at::Tensor value) { dxs[i] = std::move(value); });
  return dxs;
}

StepBackward::Progress StepBackward::begin(const variable_list& dys, bool keep_graph) {
  ORTMODULE_CHECK(!is_freed(), kRuntime, kSecondBackward);
  Progress progress;
  if (late && late->waits()) late->settle(LateReason::kBackward, true);
  if (late && !state && !quick_state) quick_state = late->begin_quick();
  bool quick = quick_state != nullptr;
  for (size_t k = 0; quick && k < dys.size(); ++k) quick = !dys[k].defined() || late->plan().quick_ys[k] >= 0;
  if (quick) {
    TrainingAgent& other = *late->plan().quick;
    variable_list own(other.program().y_outputs.size());
    for (size_t k = 0; k < dys.size(); ++k)
      if (dys[k].defined()) own[static_cast<size_t>(late->plan().quick_ys[k])] = dys[k];
    progress.agent = &other;
    progress.run = other.begin_backward(*quick_state, own, keep_graph);
    if (keep_graph) return progress;
    quick_spent.resize(dys.size(), !progress.run->program);  // without any gradient all is freed
    for (size_t k = 0; k < dys.size(); ++k) quick_spent[k] = quick_spent[k] || dys[k].defined();
    return progress;
  }
  if (!state) {
    state = late->whole_state();
    state->spent = std::exchange(quick_spent, {});
    quick_state.reset();
  }
  progress.agent = agent.get();
  progress.run = agent->begin_backward(*state, dys, keep_graph);
  return progress;
}

bool StepBackward::release() {
  const bool done = state ? state->freed : quick_state && quick_state->freed && agent->is_spent(quick_spent);
  if (!done) return false;
  state.reset();
  quick_state.reset();
  if (late) late->end_gradients();
  late_ended = true;
  return true;
}

variable_list ModuleBackward::hand_on(StepBackward::Progress progress) {
  variable_list results(num_outputs());
  for (size_t i = 0; i < count_; ++i) results[i] = std::move(progress.early[gradient_of(i)]);
  if (has_next()) results.back() = signal();
  leave_progress(std::move(progress));
  return without_empty(std::move(results));
}

variable_list ModuleBackward::apply_batched(const variable_list& grads) {
  const bool history = at::GradMode::is_enabled(), keep = torch::autograd::get_current_graph_task_keep_graph();
  StepBackward::Progress progress;
  progress.early = batched_gradients(grads, [&](const variable_list& one, bool more) {
    StepBackward::Progress engine;
    {
      const at::NoGradGuard no_grad;
      const std::lock_guard<std::mutex> lock(step_->mutex);
      engine = step_->begin(one, keep || more);
    }
    return history ? with_history(one, engine) : step_->engine_gradients(engine);
  });
  return hand_on(std::move(progress));
}

at::Tensor ModuleBackward::signal() const {
  const Edge& next = next_edges().back();
  const at::TensorOptions options = next.function->input_metadata(next.input_nr).options();
  return options.device().is_cpu() ? at::Tensor() : at::empty({0}, options);
}

ModuleBackward* step_behind(const std::vector<std::optional<at::Tensor>>& results) {
  std::vector<torch::autograd::Node*> pending;
  for (const std::optional<at::Tensor>& result : results)
    if (result && result->defined() && result->grad_fn()) pending.push_back(&*result->grad_fn());
  std::unordered_set<torch::autograd::Node*> seen(pending.begin(), pending.end());
  while (!pending.empty()) {
    torch::autograd::Node* const node = pending.back();
    pending.pop_back();
    if (auto* const step = dynamic_cast<ModuleBackward*>(node)) return step;
    for (const Edge& edge : node->next_edges())
      if (edge.function && seen.insert(&*edge.function).second) pending.push_back(&*edge.function);
  }
  return nullptr;
}

std::vector<at::Tensor> run_with_history(const std::shared_ptr<TrainingAgent>& agent,
                                         const std::shared_ptr<KeptEdges>& kept_edges,
                                         const std::shared_ptr<const HigherOrder>& higher, const HookOrder& hook_order,
                                         const std::shared_ptr<const ResultOrder>& results,
                                         const std::shared_ptr<LatePlan>& late, std::vector<at::Tensor>&& inputs,
                                         const std::vector<size_t>* unchecked) {
  const TrainingProgram& program = agent->program();
  // In inference mode nothing has a history, whatever the gradient mode is.
  bool wanted = at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() && !program.y_outputs.empty();
  wanted = wanted && std::any_of(program.x_inputs.begin(), program.x_inputs.end(),
                                 [&](size_t i) { return inputs[i].requires_grad(); });
  if (!wanted) return agent->forward(std::move(inputs), nullptr, unchecked);

  // An input whose gradient is identically zero has no edge, as in eager: its .grad stays None.
  StepEdges all = kept_edges->find(inputs, program.x_inputs, program.x_reachable);
  const auto step = std::make_shared<StepBackward>();
  // Note [Order of hooks]
  const bool hooked = hook_order && all.hooked > 1;
  step->agent = agent;
  step->higher = higher;
  step->hook_order = hook_order;
  step->results = results;
  if (higher) step->given.emplace(*higher, inputs, results && results->any());
  // Whoever looks at the values of runs sees all of them.
  if (late && late->is_on() && !agent->is_observed()) step->late = LateCall::begin(agent, late, inputs);
  std::vector<at::Tensor> outputs = step->late ? step->late->run_quick(std::move(inputs), unchecked)
                                               : agent->forward(std::move(inputs), &step->state, unchecked);
  // An output that is saved, or that is an input, gets a tensor of its own: history is set on the caller's alone.
  for (size_t i : program.y_outputs)
    if (outputs[i].use_count() > 1) outputs[i] = outputs[i].detach();

  const std::vector<std::vector<size_t>> chain = segments_of(all, agent->segments(), hook_order, hooked);

  // From the last segment to the first, so that each finds the one that follows it.
  ModulePtr node;
  for (size_t s = std::max<size_t>(chain.size(), 1); s-- > 0;) {
    std::vector<size_t> own;
    StepEdges part;
    if (chain.empty()) {
      part = std::move(all);
    } else {
      own = chain[s];
      part.kept = all.kept;
      for (size_t k : own) {
        part.edges.push_back(std::move(all.edges[k]));
        part.leaves.push_back(all.leaves[k]);
      }
    }
    const size_t own_count = part.leaves.size();
    if (node) part.edges.emplace_back(node, 0);
    node = make_node<ModuleBackward>(step, std::move(own), own_count, s == 0);
    if (s > 0) node->add_input_metadata(at::empty({0}, outputs[program.y_outputs[0]].options()));
    node->set_edges(std::move(part), kept_edges);
    node->add_post_hook(std::make_unique<CutEdges>(&*node));
  }
  tie_results(step, {node, 0}, outputs);
  return outputs;
}

}  // namespace ortmodule

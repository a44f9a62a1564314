#include "runtime/training_agent.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/status.h"
#include "kernels/materialized.h"
#include "kernels/small_tensor.h"
#include "plan/gradient_segments.h"
#include "runtime/result_memory.h"

namespace ortmodule {
namespace {

// What the sizes in a run depend on, in an order of its own.
std::vector<int64_t> memory_key(const SymbolTable& symbols, int64_t kind) {
  const std::map<std::string, int64_t> sorted(symbols.begin(), symbols.end());
  std::vector<int64_t> key{kind};
  for (const auto& [name, size] : sorted) key.push_back(size);
  return key;
}

// Which of its storage's elements a tensor shows, and in which order: `.data = t.data.t()` changes that alone. Taken of
// each weight in each step.
[[gnu::always_inline]] inline uint64_t layout_of(const at::Tensor& t) {
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  constexpr uint64_t kPrime = 0x100000001b3;  // of the hash FNV-1a
  const c10::IntArrayRef sizes = impl.sizes();
  const int64_t* const strides = impl.strides().data();
  auto mixed = static_cast<uint64_t>(impl.storage_offset());
  for (size_t i = 0; i < sizes.size(); ++i)
    mixed = ((mixed ^ static_cast<uint64_t>(sizes[i])) * kPrime ^ static_cast<uint64_t>(strides[i])) * kPrime;
  return mixed;
}

// t._version() without its way through autograd's hooks.
inline uint32_t version_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->version_counter().current_version(); }

bool meet(const OutputSet& a, const OutputSet& b) {
  for (size_t k = 0; k < std::min(a.size(), b.size()); ++k)
    if (a[k] && b[k]) return true;
  return false;
}

// Gives each tensor that shares memory with one of `owners`, in ascending order, memory of its own.
void set_apart(std::vector<at::Tensor>& tensors, const std::vector<const c10::StorageImpl*>& owners) {
  for (at::Tensor& t : tensors)
    if (const c10::StorageImpl* memory = memory_of(t))
      if (std::binary_search(owners.begin(), owners.end(), memory, std::less<>())) t = t.detach().clone();
}

void run_observed(const Executor& executor, Frame& frame, const OutputSink* sink, const HalfObservers& watching,
                  Measurement* measurement, const CachedRun* cached = nullptr, size_t begin = 0,
                  size_t end = SIZE_MAX) {
  if (!measurement && !cached && watching.empty()) return executor.run(frame, sink, nullptr, begin, end);
  const StepObserver observer = [&](const Step& step, const Frame& f) {
    if (measurement) measurement->meter.after_step(step, f);
    if (cached) cached->steps.keep(step, f, cached->cache);
    watching.step(step, f);
  };
  executor.run(frame, sink, &observer, begin, end);
}

}  // namespace

TrainingAgent::TrainingAgent(TrainingProgram program, c10::Device device)
    : program_(std::move(program)), device_(device) {
  if (device.is_cpu() && program_.plans_memory) memory_ = std::make_shared<StepMemory>();
  if (program_.parallel && program_.plans_memory) program_.parallel->keep_memory();
  const OutputSet all(program_.y_outputs.size(), true);
  variants_[all] = {program_.full_backward, remaining_after(all)};
  for (const Step& step : program_.forward->plan().steps)
    convolves_ |= !device.is_cpu() && step.node && step.node->op().starts_with("Conv");
  places_ = std::make_unique<ResultPlaces>(program_.forward->plan().output_slots.size());
  if (program_.full_backward)
    segments_ = gradient_segments(program_.full_backward->executor->ready_after(), program_.x_bytes);
  std::vector<char> saved(program_.slot_count, false);
  for (const auto* slots : {&program_.saved_slots, &program_.witness_slots})
    for (int slot : *slots) saved[slot] = true;
  for (size_t slot = 0; slot < saved.size(); ++slot)
    if (!saved[slot]) passing_slots_.push_back(static_cast<int>(slot));
}

std::shared_ptr<Allowance> TrainingAgent::allowance() const {
  const Limits& limits = program_.limits;
  if (limits.run_bytes == Limits::kUnlimited && limits.seconds <= 0) return nullptr;
  return std::make_shared<Allowance>(limits);
}

std::string TrainingAgent::input_hint(int slot) const {
  for (size_t i = 0; i < program_.input_slots.size(); ++i)
    if (program_.input_slots[i] == slot)
      return str(" It is '", program_.binding->name(i), "': change it before the forward or after the backward.");
  return {};
}

void TrainingAgent::take_room(RunState& state) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state.frame.slots.swap(spare_slots_);
    state.versions.swap(spare_versions_);
  }
  state.frame.slots.resize(program_.slot_count);
  state.versions.reserve(program_.watched_slots.size() + program_.watched_views.size());
}

void TrainingAgent::keep_versions(Versions versions) {
  versions.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_versions_.swap(versions);
}

void TrainingAgent::keep_slots(std::vector<at::Tensor> slots) {
  for (at::Tensor& value : slots)
    if (value.defined()) recycle(value);
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_slots_.swap(slots);
}

std::vector<at::Tensor> TrainingAgent::forward(std::vector<at::Tensor>&& inputs, std::shared_ptr<RunState>* state,
                                               const std::vector<size_t>* unchecked, const InterOp* inter_op,
                                               const CachedRun* cached, ResultBuffers* results) {
  for (const at::Tensor& x : inputs) make_memory(x);
  const Allowance::Scope limited(allowance());
  const MatmulScope matmul(program_.matmul);
  auto run = std::make_shared<RunState>();
  Frame& frame = run->frame;
  program_.binding->bind(inputs, frame.symbols, unchecked);
  take_room(*run);
  const bool filled = cached && cached->steps.fill(frame, cached->cache);
  const bool parallel =
      inter_op && !filled && program_.parallel && program_.parallel->may_run(*inter_op) && !observers_->any();
  if (results && !parallel && device_.is_cpu() && !observers_->any())
    frame.bound = BoundResults::make(*results, program_.output_types, frame.symbols, inputs, *places_);
  if (memory_ && !parallel) {  // a run that leaves steps out is another pattern
    std::vector<int64_t> key = memory_key(frame.symbols, (state ? 1 : 0) + (filled ? 2 : 0));
    if (frame.bound) frame.bound->add_to(key);
    frame.memory = memory_->begin(key);
  }
  program_.forward->load_constants(frame);
  const bool turned = convolves_ && !any_channels_last(inputs);
  std::vector<const c10::StorageImpl*> overwritten;
  for (size_t i : overwritten_)
    if (const c10::StorageImpl* memory = memory_of(inputs[i])) overwritten.push_back(memory);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (program_.input_slots[i] >= 0) frame.slots[program_.input_slots[i]] = materialized_values(std::move(inputs[i]));

  if (parallel)
    program_.parallel->run(frame, *inter_op, program_.matmul);
  else
    run_forward(frame, filled, cached);
  std::vector<at::Tensor> outputs;
  const auto& slots = program_.forward->plan().output_slots;
  outputs.reserve(slots.size());
  for (int slot : slots) outputs.push_back(frame.slots[slot]);
  if (turned) set_row_by_row(outputs, results_);
  // In the graph a clone, and a view of one, may be the very tensor that it was made of.
  std::sort(overwritten.begin(), overwritten.end(), std::less<>());
  if (!overwritten.empty()) set_apart(outputs, overwritten);
  if (!state) {
    keep_slots(std::move(frame.slots));
    keep_versions(std::move(run->versions));
    if (results)
      place_results(outputs, *results, frame.bound.get(), program_.forward->plan().output_names);
    else
      set_results_apart(outputs, results_, program_.result_owners);
    return outputs;
  }

  // What only the outputs needed leaves the frame; what stays is saved for backward.
  for (int slot : passing_slots_)
    if (frame.slots[slot].defined()) recycle(frame.slots[slot]);
  if (!overwritten.empty()) {
    for (int slot : program_.witness_slots)  // what is saved of those is copied
      if (std::binary_search(overwritten.begin(), overwritten.end(), memory_of(frame.slots[slot]), std::less<>()))
        frame.slots[slot].reset();
    set_apart(frame.slots, overwritten);
  }
  const auto watch = [&](int slot) __attribute__((always_inline)) {
    const at::Tensor& t = frame.slots[slot];
    if (t.defined() && !t.is_inference()) run->versions.push_back({slot, version_of(t), memory_of(t), layout_of(t)});
  };
  ResultsApart apart = set_results_apart(outputs, results_, program_.result_owners, frame.slots, program_.saved_slots);
  run->read_results = std::move(apart.read);
  for (int slot : apart.viewed) watch(slot);
  for (int slot : program_.watched_slots) watch(slot);
  for (const auto& [input, view] : program_.watched_views)
    if (memory_of(frame.slots[input]) && memory_of(frame.slots[input]) == memory_of(frame.slots[view])) watch(input);
  if (program_.y_outputs.size() > 1)
    for (size_t i : program_.y_outputs) run->y_types.emplace_back(outputs[i].sizes().vec(), outputs[i].options());
  *state = std::move(run);
  return outputs;
}

CachedSteps TrainingAgent::cached_steps(const std::vector<size_t>& inputs) const {
  std::vector<int> slots;
  for (size_t i : inputs)
    if (program_.input_slots[i] >= 0) slots.push_back(program_.input_slots[i]);
  std::vector<int> needed = program_.forward->plan().output_slots;
  needed.insert(needed.end(), program_.saved_slots.begin(), program_.saved_slots.end());
  return CachedSteps(program_.forward->plan(), slots, needed);
}

void TrainingAgent::run_forward(Frame& frame, bool filled, const CachedRun* cached) {
  static const std::vector<std::string> none;
  const Executor& executor = *program_.forward;
  HalfObservers watching =
      observers_->begin({executor.plan(), program_.input_slots, program_.input_names, none}, frame);
  if (filled) {
    const StepObserver observer = [&](const Step& step, const Frame& f) { watching.step(step, f); };
    cached->steps.run_rest(executor, frame, watching.empty() ? nullptr : &observer);
    return watching.finish();
  }
  std::optional<Measurement> measurement;
  if (first_forward_->claim()) measurement.emplace(first_forward_, frame, std::vector<char>(frame.slots.size(), true));
  run_observed(executor, frame, nullptr, watching, measurement ? &*measurement : nullptr, cached);
  if (measurement) {
    measurement->meter.finish(frame);
    measurement->finish(program_.saved_slots);
  }
  watching.finish();
}

const TrainingAgent::Variant& TrainingAgent::variant_for(const OutputSet& mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = variants_.find(mask);
  if (known != variants_.end()) return known->second;
  std::shared_ptr<BackwardProgram> program = program_.compile_backward ? program_.compile_backward(mask) : nullptr;
  if (!program) program = program_.full_backward;
  return variants_.emplace(mask, Variant{std::move(program), remaining_after(mask)}).first->second;
}

OutputSet TrainingAgent::remaining_after(const OutputSet& spent) const {
  OutputSet remaining(spent.size(), false);
  bool any = false;
  for (size_t k = 0; k < program_.meets.size(); ++k) {
    remaining[k] = !meet(program_.meets[k], spent);
    any = any || remaining[k];
  }
  return any ? remaining : OutputSet();
}

bool TrainingAgent::is_kept(const BackwardProgram& program, const RunState& state) const {
  const OutputSet remaining = remaining_after(state.spent);
  for (size_t i = 0; i < program_.saved_slots.size(); ++i)
    if ((program.reads.empty() || program.reads[program_.saved_slots[i]]) && !meet(program_.needed_by[i], remaining))
      return false;
  return true;
}

Frame TrainingAgent::take_frame(RunState& state, const OutputSet& remaining) {
  Frame frame = std::move(state.frame);
  state.frame = {};
  if (remaining.empty()) {
    keep_versions(std::move(state.versions));
    state.freed = true;
    return frame;
  }
  state.frame.symbols = frame.symbols;
  state.frame.slots.resize(program_.slot_count);
  for (size_t i = 0; i < program_.saved_slots.size(); ++i)
    if (meet(program_.needed_by[i], remaining))
      state.frame.slots[program_.saved_slots[i]] = frame.slots[program_.saved_slots[i]];
  return frame;
}

std::shared_ptr<const BackwardProgram> TrainingAgent::backward_at(const void* program) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [dys, variant] : variants_)
    if (variant.program.get() == program) return variant.program;
  return program_.full_backward.get() == program ? program_.full_backward : nullptr;
}

std::vector<StepTime> TrainingAgent::take_times() {
  std::vector<StepTime> out = program_.forward->take_times();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<const BackwardProgram*> seen;  // several kinds of calls may share a program
  for (const auto& [dys, variant] : variants_) {
    if (!variant.program || !seen.insert(variant.program.get()).second) continue;
    for (const StepTime& time : variant.program->executor->take_times()) out.push_back(time);
  }
  return out;
}

void TrainingAgent::backward(RunState& state, const std::vector<at::Tensor>& dys, bool keep_graph,
                             const OutputSink& sink) {
  const std::unique_ptr<BackwardRun> run = begin_backward(state, dys, keep_graph);
  advance(*run, SIZE_MAX, sink);
}

std::unique_ptr<TrainingAgent::BackwardRun> TrainingAgent::begin_backward(RunState& state,
                                                                          const std::vector<at::Tensor>& dys,
                                                                          bool keep_graph) {
  OutputSet mask(dys.size());
  bool any = false, may_run = !state.freed;
  for (size_t k = 0; k < dys.size(); ++k) {
    mask[k] = dys[k].defined();
    any = any || mask[k];
    if (mask[k] && !state.spent.empty()) may_run = may_run && !meet(program_.meets[k], state.spent);
  }
  ORTMODULE_CHECK(may_run, kRuntime,
                  "Trying to backward through the graph a second time (or directly access saved tensors after they "
                  "have already been freed). Saved intermediate values of the graph are freed when you call "
                  ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
                  "graph a second time or if you need to access saved tensors after calling backward.");
  // Autograd may pass no gradient at all; then none flows on, as in eager.
  auto run = std::make_unique<BackwardRun>();
  run->allowance = allowance();
  const Variant* variant = any ? &variant_for(mask) : nullptr;
  if (any) run->program = variant->program;
  ORTMODULE_CHECK(!any || state.spent.empty() || is_kept(*run->program, state), kUnsupported,
                  "the backward through some outputs of the call needs values that the backward through others has "
                  "freed; pass retain_graph=True to the first");
  for (const auto& [slot, version, memory, layout] : state.versions) {
    if (any && !run->program->reads.empty() && !run->program->reads[slot]) continue;
    const at::Tensor& tensor = state.frame.slots[slot];
    ORTMODULE_CHECK(version_of(tensor) == version, kRuntime,
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    "[",
                    tensor.toString(), " ", tensor.sizes(), "] is at version ", version_of(tensor),
                    "; expected version ", version, " instead.", input_hint(slot));
    // Eager goes on with the memory of the forward or with that of now, as each operator has it.
    ORTMODULE_CHECK(memory_of(tensor) == memory && layout_of(tensor) == layout, kRuntime,
                    "one of the variables needed for gradient computation was given other memory (`.data = `) between "
                    "forward and backward: [",
                    tensor.toString(), " ", tensor.sizes(),
                    "]. Set it before the forward or after the backward, or call the wrapped module itself "
                    "(model.module)");
  }
  for (const ReadResult& result : state.read_results)
    if (result.is_shown()) run->read_results.push_back(result);
  Frame& frame = run->frame;
  if (keep_graph) {
    frame = state.frame;
  } else if (!any) {
    frame = take_frame(state, {});
  } else if (state.spent.empty() && variant->remaining.empty()) {
    frame = take_frame(state, {});
  } else {
    state.spent.resize(mask.size(), false);
    for (size_t k = 0; k < mask.size(); ++k) state.spent[k] = state.spent[k] || mask[k];
    frame = take_frame(state, remaining_after(state.spent));
  }
  if (state.freed) state.read_results.clear();
  if (!any) return run;
  const BackwardProgram& program = *run->program;
  if (frame.memory) frame.memory->run()->begin_backward(&program);
  frame.slots.resize(program.slot_count);
  program.executor->load_constants(frame);
  for (size_t i = 0; i < dys.size(); ++i) {
    const int slot = program.dy_slots[i];
    if (slot < 0) continue;
    frame.slots[slot] =
        dys[i].defined() ? materialized(dys[i]) : at::zeros(state.y_types[i].first, state.y_types[i].second);
  }
  if (first_backward_->claim()) {
    std::vector<char> given(frame.slots.size(), false);
    for (const int slot : program_.input_slots)
      if (slot >= 0) given[slot] = true;
    for (const auto& [slot, constant] : program.executor->plan().constants) given[slot] = true;
    run->measurement = std::make_unique<Measurement>(first_backward_, frame, given);
  }
  return run;
}

void TrainingAgent::advance(BackwardRun& run, size_t end, const OutputSink& sink) {
  if (!run.program || end <= run.next) return;
  const Allowance::Scope limited(run.allowance);
  const MatmulScope matmul(program_.matmul);
  const Executor& executor = *run.program->executor;
  if (!run.begun) {
    run.watching =
        observers_->begin({executor.plan(), run.program->dy_slots, program_.y_names, program_.x_names}, run.frame);
    run.begun = true;
  }
  run_observed(executor, run.frame, &sink, run.watching, run.measurement.get(), nullptr, run.next, end);
  run.next = end;
  if (end < executor.step_count()) return;
  if (run.measurement) run.measurement->finish({});
  run.measurement.reset();  // a last part may have no steps
  run.watching.finish();
  keep_slots(std::move(run.frame.slots));
}

}  // namespace ortmodule

#include "runtime/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "base/limits.h"
#include "device/small_block_scope.h"
#include "graph/subgraph.h"
#include "kernels/aten_bridge.h"
#include "kernels/cuda_kernel.h"
#include "kernels/small_tensor.h"
#include "plan/streams.h"
#include "records/registry.h"
#include "runtime/kernel_clock.h"
#include "runtime/profiler_range.h"
#include "runtime/run_stop.h"
#include "runtime/run_trace.h"
#include "runtime/subgraph_runner.h"
#include "runtime/torch_error.h"

namespace ortmodule {
namespace {

std::atomic<int> profilers{0};

// Times the steps of one run; what an unprofiled run costs is one comparison per step.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepClock(size_t steps) : trace_(RunTrace::current()), on_(trace_ || Executor::profiled()) {
    if (on_) seconds_.reserve(steps);
  }
  bool on() const { return on_; }
  void start() {
    if (on_) begin_ = Clock::now();
  }
  void stop(const Step& step) {
    if (!on_) return;
    const Clock::time_point end = Clock::now();
    seconds_.push_back(std::chrono::duration<double>(end - begin_).count());
    if (trace_) trace_->add(step, begin_, end);
  }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  RunTrace* const trace_;
  bool on_;
  Clock::time_point begin_{};
  std::vector<double> seconds_;
};

}  // namespace

void Executor::profile(bool on) { profilers += on ? 1 : -1; }
bool Executor::profiled() { return profilers.load(std::memory_order_relaxed) > 0; }

std::vector<StepTime> Executor::take_times() const {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  std::vector<StepTime> out;
  for (size_t i = 0; i < times_.size(); ++i)
    if (times_[i].calls > 0) out.push_back({steps_[i].step, times_[i].calls, times_[i].seconds, times_[i].cost});
  times_.clear();
  return out;
}

SymbolTable Executor::profiled_sizes() const {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  return costed_;
}

double Executor::mean_seconds(size_t step) const {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  if (step >= times_.size() || times_[step].calls == 0) return -1;
  return times_[step].seconds / static_cast<double>(times_[step].calls);
}

Executor::Executor(ExecutionPlan plan, c10::Device device) : plan_(std::move(plan)), device_(device) {
  if (plan_.placed) streams_.emplace(plan_);
  std::vector<long> last_touch(1, -1);
  for (const Step& step : plan_.steps) {
    const c10::Device here = streams_ ? c10::Device(step.node->device()) : device_;
    const std::string device_type = c10::DeviceTypeName(here.type(), true);
    const SubgraphDeviceScope bodies_run_here(here);
    const KernelDef* def = KernelRegistry::instance().find(*step.node, {step.node->provider(), device_type});
    ORTMODULE_CHECK(def, kUnsupported, "there is no kernel for ", step.node->describe(), " on ", device_type,
                    " with inputs of type ",
                    step.node->input(0) ? step.node->input(0)->type().text() : std::string("none"));
    Prepared prepared;
    prepared.kernel = make_kernel(*def, *step.node);
    if (streams_) prepared.kernel = on_stream(std::move(prepared.kernel), step);
    prepared.step = &step;
    prepared.view.device = here;
    for (const auto* list : {&step.inputs, &step.outputs}) {
      for (int slot : *list) {
        if (slot < 0) continue;
        if (last_touch.size() <= static_cast<size_t>(slot)) last_touch.resize(slot + 1, -1);
        last_touch[slot] = static_cast<long>(steps_.size());
      }
    }
    steps_.push_back(std::move(prepared));
    may_overwrite_.push_back(def->may_inplace);
    bool keeps_nothing = !def->foreign;
    for_each_subgraph(*step.node, [&](const auto&, const auto&) { keeps_nothing = false; });
    keeps_nothing_.push_back(keeps_nothing);
  }
  std::vector<std::vector<Emit>> emits(steps_.size());
  ready_after_.assign(plan_.output_slots.size(), 0);
  std::unordered_map<int, size_t> last_output;  // of a slot
  for (size_t i = 0; i < plan_.output_slots.size(); ++i) last_output[plan_.output_slots[i]] = i;
  for (size_t i = 0; i < plan_.output_slots.size(); ++i) {
    const int slot = plan_.output_slots[i];
    if (slot < 0) continue;
    const Emit emit{i, last_output[slot] != i};
    long at = static_cast<size_t>(slot) < last_touch.size() ? last_touch[slot] : -1;
    if (plan_.late.count(plan_.output_names[i])) at = -1;
    if (at < 0)
      emit_at_end_.push_back(emit);
    else
      emits[at].push_back(emit);
    ready_after_[i] = at < 0 ? steps_.size() : static_cast<size_t>(at) + 1;
  }
  gather_lists(emits);
  for (const auto& [slot, value] : plan_.constants) {
    const c10::Device where = value->location().empty() ? device_ : c10::Device(value->location());
    constants_.emplace_back(slot, shared_tensor_from(*value->constant()).to(where));
  }
}

// The host's steps and those on the caller's stream run as they are where nothing waits for them, nor they for it.
Kernel Executor::on_stream(Kernel kernel, const Step& step) const {
  const bool here =
      is_host(plan_.streams[step.stream]) ||
      (plan_.streams[step.stream].role == LogicStream::Role::kCompute && streams_->device(step.stream) == device_);
  if (here && step.waits.empty() && step.notifies < 0 && step.foreign.empty() && step.held.empty()) return kernel;
  return [kernel = std::move(kernel), &step](KernelContext& c) { c.streams()->run(step, kernel, c); };
}

void Executor::gather_lists(const std::vector<std::vector<Emit>>& emits) {
  size_t slots = 0, flags = 0, emitted = 0;
  for (const Prepared& prepared : steps_) {
    const Step& step = *prepared.step;
    slots += step.inputs.size() + step.outputs.size() + step.release.size();
    flags += step.last_use.size();
  }
  for (const auto& list : emits) emitted += list.size();
  slots_.reserve(slots);  // what follows points into them
  flags_.reserve(flags);
  emits_.reserve(emitted);
  const auto append = []<typename T>(std::vector<T>& all, const std::vector<T>& list) {
    all.insert(all.end(), list.begin(), list.end());
    return std::span<const T>(all).last(list.size());
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = *steps_[i].step;
    const auto inputs = append(slots_, step.inputs), outputs = append(slots_, step.outputs);
    // std::vector<char> is used as bool storage in the plan; both are one byte that holds 0 or 1.
    const auto last_use = append(flags_, step.last_use);
    steps_[i].view = {inputs.data(),
                      inputs.size(),
                      outputs.data(),
                      outputs.size(),
                      reinterpret_cast<const bool*>(last_use.data()),
                      steps_[i].view.device};
    steps_[i].release = append(slots_, step.release);
    steps_[i].emits = append(emits_, emits[i]);
  }
}

void Executor::load_constants(Frame& frame) const {
  for (const auto& [slot, tensor] : constants_) frame.slots[slot] = tensor;
}

namespace {

std::string text_of(const Node& node, const char* what) {
  return str("[", node.op(), "] ", what, " (", node.describe(), ")");
}

[[noreturn]] void fail_in(const Node& node, const char* what) { fail(ErrorCode::kRuntime, text_of(node, what)); }

[[noreturn]] void fail_in(const Node& node, const c10::Error& error) {
  if (const auto type = type_of(error)) throw TypedError(*type, text_of(node, error.what_without_backtrace()));
  fail_in(node, error.what_without_backtrace());
}

}  // namespace

void Executor::run_step(const Prepared& prepared, KernelContext& context) const {
  try {
    context.set_step(prepared.view);
    if (KernelClock* clock = KernelClock::running())
      clock->time([&] { prepared.kernel(context); });
    else
      prepared.kernel(context);
  } catch (const LimitError& e) {
    if (e.what()[0] == '[') throw;  // a body's node is named already
    throw LimitError(text_of(*prepared.step->node, e.what()));
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& e) {
    fail_in(*prepared.step->node, e);
  } catch (const std::runtime_error& e) {  // not all that ATen throws is its own
    fail_in(*prepared.step->node, e.what());
  } catch (const std::logic_error& e) {
    fail_in(*prepared.step->node, e.what());
  } catch (const std::bad_alloc& e) {
    fail_in(*prepared.step->node, e.what());
  }
}

void Executor::run_step(size_t step, KernelContext& context) const { run_step(steps_[step], context); }

void Executor::run(Frame& frame, const OutputSink* sink, const StepObserver* observer, size_t begin, size_t end) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // The graph has autocast's casts as nodes; the caller's autocast must not add its own.
  const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
  const SmallBlockScope small_blocks(device_.is_cpu());
  const c10::OptionalDeviceGuard device_guard(device_.is_cpu() ? std::optional<c10::Device>() : device_);
  if (!device_.is_cpu()) use_cuda_device(device_);
  if (streams_ && begin == 0) frame.streams = std::make_shared<RunStreams>(plan_, *streams_);
  KernelContext context(frame.slots.data(), &frame.symbols, frame.streams.get());
  const auto emit = [&](const Emit& output) {
    at::Tensor& value = frame.slots[plan_.output_slots[output.index]];
    if (output.again) return (*sink)(output.index, at::Tensor(value));
    (*sink)(output.index, std::move(value));
    value.reset();  // nobody has taken it
  };
  const std::shared_ptr<StepMemory::Run> memory = frame.memory ? frame.memory->run() : nullptr;
  BoundResults* const bound = frame.bound.get();
  if (bound) bound->serve_before(memory);
  CpuAllocationScope allocations(bound ? static_cast<CpuAllocationServer*>(bound) : memory.get());
  allocations.pause();
  StepClock clock(steps_.size());
  const bool ranged = at::hasCallbacks();
  const RunStop* const stop = RunStop::current();
  const Allowance* const allowance = Allowance::current().get();
  // Nearly always nothing looks at the steps, nor may it stop between two: then one branch tells all of that.
  const bool looked_at = stop || allowance || bound || observer || ranged || clock.on();
  const size_t last = std::min(end, steps_.size());
  for (size_t i = begin; i < last; ++i) {
    const Prepared& prepared = steps_[i];
    if (memory) memory->step();
    if (!looked_at) [[likely]] {
      allocations.resume();
      run_step(prepared, context);
      allocations.pause();
    } else {
      if (stop) stop->check();
      if (allowance) allowance->check_time();
      if (bound) bound->step(i, keeps_nothing_[i]);
      clock.start();
      const ProfilerRange range(ranged, [&]() -> const std::string& { return range_name(i); });
      allocations.resume();
      run_step(prepared, context);
      allocations.pause();
      clock.stop(*prepared.step);
      if (observer) (*observer)(*prepared.step, frame);
    }
    for (int slot : prepared.release) recycle(frame.slots[slot]);
    if (sink)
      for (const Emit& output : prepared.emits) emit(output);
  }
  if (streams_ && end >= steps_.size()) {
    frame.streams->finish();
    frame.streams.reset();
  }
  if (sink && end >= steps_.size())
    for (const Emit& output : emit_at_end_) emit(output);
  if (clock.on()) add_times(clock.seconds(), frame.symbols, begin);
}

const std::string& Executor::range_name(size_t step) const {
  std::call_once(named_, [&] {
    range_names_.reserve(steps_.size());
    for (const Prepared& prepared : steps_) range_names_.push_back(ortmodule::range_name(*prepared.step->node));
  });
  return range_names_[step];
}

void Executor::add_times(const std::vector<double>& seconds, const SymbolTable& sizes, size_t begin) const {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  times_.resize(steps_.size());
  if (costs_.empty() || costed_ != sizes) {
    costs_.clear();
    for (const Prepared& prepared : steps_) costs_.push_back(cost_of(*prepared.step->node, sizes));
    costed_ = sizes;
  }
  const auto add = [](double& sum, double one) { sum = sum < 0 || one < 0 ? -1 : sum + one; };
  for (size_t i = 0; i < seconds.size(); ++i) {
    if (seconds[i] < 0) continue;  // it did not run
    Times& times = times_[begin + i];
    ++times.calls;
    times.seconds += seconds[i];
    add(times.cost.bytes, costs_[begin + i].bytes);
    add(times.cost.flops, costs_[begin + i].flops);
  }
}

}  // namespace ortmodule

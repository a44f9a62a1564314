#include "runtime/run_streams.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "plan/streams.h"

namespace ortmodule {
namespace {

struct LeftOut {
  std::mutex mutex;
  std::string plan;
  int wait = -1;
};

LeftOut& left_out() {
  static LeftOut instance;
  return instance;
}

c10::impl::VirtualGuardImpl guard_of(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

}  // namespace

HeldCopies& HeldCopies::instance() {
  static HeldCopies* const instance = new HeldCopies;  // at exit devices may be gone before it
  return *instance;
}

void HeldCopies::add(std::vector<c10::Event> behind, std::vector<at::Tensor> tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.push_back({std::move(behind), std::move(tensors)});
}

void HeldCopies::release() {
  std::vector<Held> done;  // let go of when the lock is
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto first = std::stable_partition(held_.begin(), held_.end(), [](const Held& held) {
    return !std::all_of(held.behind.begin(), held.behind.end(), [](const c10::Event& event) { return event.query(); });
  });
  std::move(first, held_.end(), std::back_inserter(done));
  held_.erase(first, held_.end());
}

StreamTable::StreamTable(const ExecutionPlan& plan) {
  for (const LogicStream& stream : plan.streams) {
    const bool of_device = stream.role != LogicStream::Role::kCommunication && !is_host(stream);
    const c10::Device device = of_device ? c10::Device(stream.device) : c10::Device(c10::kCPU);
    devices_.push_back(device);
    own_.emplace_back();
    if (of_device && stream.role == LogicStream::Role::kTransfer)
      own_.back() = guard_of(device).getStreamFromGlobalPool(device);
  }
}

std::optional<c10::Stream> StreamTable::current(size_t stream) const {
  if (own_[stream] || devices_[stream].is_cpu()) return own_[stream];
  return guard_of(devices_[stream]).getStream(devices_[stream]);
}

RunStreams::RunStreams(const ExecutionPlan& plan, const StreamTable& table)
    : plan_(plan), events_(static_cast<size_t>(plan.notifications)) {
  for (size_t s = 0; s < table.size(); ++s) streams_.push_back(table.current(s));
  holds_.assign(streams_.size(), 0);
  HeldCopies::instance().release();
  {
    LeftOut& out = left_out();
    const std::lock_guard<std::mutex> lock(out.mutex);
    if (out.plan == plan.name) left_out_ = out.wait;
  }
  for (const auto& [notification, stream] : plan_.begins) notify(notification, stream);
}

RunStreams::~RunStreams() {
  if (finished_) return;
  try {
    for (const auto& stream : streams_)
      if (stream) stream->synchronize();
  } catch (...) {  // the device has failed; the error that ended the run is told
  }
}

void RunStreams::leave_out(const std::string& plan, int wait) {
  LeftOut& out = left_out();
  const std::lock_guard<std::mutex> lock(out.mutex);
  out.plan = plan;
  out.wait = wait;
}

void RunStreams::wait(const Wait& wait) {
  if (waits_++ == left_out_) return;
  const std::shared_ptr<c10::Event>& event = events_[static_cast<size_t>(wait.notification)];
  if (!event) return;  // what carries collectives waits by itself
  if (const auto& stream = streams_[wait.stream])
    event->block(*stream);
  else
    event->synchronize();
}

void RunStreams::notify(int notification, size_t stream) {
  if (!streams_[stream]) return;
  std::shared_ptr<c10::Event>& event = events_[static_cast<size_t>(notification)];
  if (!event) event = std::make_shared<c10::Event>(streams_[stream]->device_type());
  event->record(*streams_[stream]);
}

void RunStreams::run(const Step& step, const Kernel& kernel, KernelContext& context) {
  waiting_ = &step;
  if (!step.waits_itself) wait_for_inputs();
  for (int slot : step.held) {
    held_.push_back(context.slot(slot));
    holds_[step.stream] = 1;
  }
  const std::optional<c10::Stream>& stream = streams_[step.stream];
  const c10::OptionalStreamGuard on_stream(stream);
  for (int slot : step.foreign)
    if (const at::Tensor& x = context.slot(slot); x.defined() && x.has_storage())
      guard_of(x.device()).recordDataPtrOnStream(x.storage().data_ptr(), *stream);
  context.set_waits(step.waits_itself ? this : nullptr);
  kernel(context);
  context.set_waits(nullptr);
  waiting_ = nullptr;
  if (step.notifies >= 0) notify(step.notifies, step.stream);
}

void RunStreams::wait_for_inputs() {
  if (const Step* const step = std::exchange(waiting_, nullptr))
    for (const Wait& w : step->waits) wait(w);
}

std::vector<std::shared_ptr<const c10::Event>> RunStreams::inputs_events() const {
  std::vector<std::shared_ptr<const c10::Event>> events;
  if (waiting_)
    for (const Wait& w : waiting_->waits)
      if (const auto& event = events_[static_cast<size_t>(w.notification)]) events.push_back(event);
  return events;
}

void RunStreams::finish() {
  for (const Wait& w : plan_.ends) wait(w);
  finished_ = true;
  if (held_.empty()) return;
  std::vector<c10::Event> behind;
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (!holds_[s]) continue;
    behind.emplace_back(streams_[s]->device_type());
    behind.back().record(*streams_[s]);
  }
  HeldCopies::instance().add(std::move(behind), std::move(held_));
}

}  // namespace ortmodule

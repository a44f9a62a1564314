#include "streams.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "counts.h"

namespace guarded {
namespace {

std::atomic<uint64_t> queued_jobs{0};
std::atomic<bool> ended{false};  // the process is ending: jobs are dropped

// One job's exception per device; those that follow from it are not told.
class KeptErrors {
 public:
  void keep(c10::DeviceIndex device, std::exception_ptr error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!errors_[device]) errors_[device] = std::move(error);
    any_ = true;
  }
  std::exception_ptr take(c10::DeviceIndex device) {
    if (!any_) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(errors_[device], nullptr);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::array<std::exception_ptr, kDevices> errors_;
};

// None of these is destroyed: threads run and tensors are freed until the process is gone.
KeptErrors& kept_errors() {
  static KeptErrors* const errors = new KeptErrors;
  return *errors;
}

using Queues = std::array<std::array<std::unique_ptr<WorkQueue>, kStreams>, kDevices>;

Queues& queues() {
  static Queues* const all = [] {
    auto* made = new Queues;
    for (int device = 0; device < kDevices; ++device)
      for (int id = 0; id < kStreams; ++id)
        (*made)[device][id] = std::make_unique<WorkQueue>(static_cast<c10::DeviceIndex>(device), id);
    return made;
  }();
  return *all;
}

thread_local c10::DeviceIndex device_here = 0;
thread_local std::array<int64_t, kDevices> streams_here{};

// What is queued when the process ends is let run before the libraries that it needs go.
const bool drained_at_exit = [] {
  return std::atexit([] {
           drain();
           ended = true;
         }) == 0;
}();

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no guarded device ", int{device});
}

}  // namespace

WorkQueue::WorkQueue(c10::DeviceIndex device, int64_t id) : device_(device), id_(id) { set_seed(0); }

void WorkQueue::push(Job job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended) return;
  if (!std::exchange(started_, true)) std::thread([this] { work(); }).detach();
  jobs_.push_back({std::move(job), drawn_delay()});
  ++queued_;
  ++queued_jobs;
  changed_.notify_all();
}

uint64_t WorkQueue::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queued_;
}

bool WorkQueue::done(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return run_ >= number;
}

void WorkQueue::wait(uint64_t number) const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return run_ >= number; });
}

void WorkQueue::follow(const WorkQueue& other, uint64_t number) {
  // No circle: a job waits only for what was queued before it was.
  if (&other != this && !other.done(number)) push([&other, number] { other.wait(number); });
}

void WorkQueue::set_delay(int microseconds, int per_mille, bool exactly) {
  const std::lock_guard<std::mutex> lock(mutex_);
  microseconds_ = microseconds;
  per_mille_ = per_mille;
  exactly_ = exactly;
}

void WorkQueue::set_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  random_.seed(static_cast<uint32_t>(seed * 1000003 + device_ * 101 + id_ * 7 + 1));
}

std::chrono::microseconds WorkQueue::drawn_delay() {
  if (microseconds_ <= 0 || static_cast<int>(random_() % 1000) >= per_mille_) return std::chrono::microseconds(0);
  return std::chrono::microseconds(exactly_ ? microseconds_ : random_() % (microseconds_ + 1));
}

void WorkQueue::work() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::AutoGradMode no_gradients(false);
  for (;;) {
    Delayed next;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      next = std::move(jobs_.front());
      jobs_.pop_front();
    }
    if (next.delay.count()) std::this_thread::sleep_for(next.delay);
    try {
      next.job();
    } catch (...) {
      kept_errors().keep(device_, std::current_exception());
    }
    next.job = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++run_;
    changed_.notify_all();
  }
}

WorkQueue& queue_of(c10::Stream stream) {
  check_index(stream.device_index());
  TORCH_CHECK(stream.device_type() == kDevice && stream.id() >= 0 && stream.id() < kStreams, "no stream of the ",
              "guarded device: ", stream);
  return *queues()[stream.device_index()][stream.id()];
}

void for_each_queue(const std::function<void(WorkQueue&)>& action) {
  for (auto& of_device : queues())
    for (auto& queue : of_device) action(*queue);
}

c10::DeviceIndex current_device() { return device_here; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  if (device < 0) return device_here;
  check_index(device);
  return std::exchange(device_here, device);
}

WorkQueue& current_queue(c10::DeviceIndex device) {
  if (device < 0) device = device_here;
  check_index(device);
  return *queues()[device][streams_here[device]];
}

WorkQueue& exchange_queue(WorkQueue& queue) {
  WorkQueue& before = current_queue(queue.device());
  streams_here[queue.device()] = queue.stream().id();
  return before;
}

WorkQueue& next_of_pool(c10::DeviceIndex device) {
  if (device < 0) device = device_here;
  check_index(device);
  static std::array<std::atomic<unsigned>, kDevices> given{};
  return *queues()[device][1 + given[device]++ % (kStreams - 1)];
}

void throw_kept(c10::DeviceIndex device) {
  if (const std::exception_ptr error = kept_errors().take(device)) std::rethrow_exception(error);
}

void synchronize(const WorkQueue& queue) {
  count_wait();
  queue.wait(queue.last());
  throw_kept(queue.device());
}

void synchronize(c10::DeviceIndex device) {
  count_wait();
  if (device < 0) device = device_here;
  check_index(device);
  for (const auto& queue : queues()[device]) queue->wait(queue->last());
  throw_kept(device);
}

void drain() noexcept {
  for_each_queue([](const WorkQueue& queue) { queue.wait(queue.last()); });
}

uint64_t jobs_queued() { return queued_jobs; }

}  // namespace guarded

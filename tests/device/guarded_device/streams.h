// Streams of the guarded device: each a thread that takes the jobs of its queue one after the other.
//
// Note [Order on the guarded device]
// What is queued on one stream runs in that order; between streams, and between a stream and the host, there is no
// order but what events and synchronisation make, as on a GPU. A job holds addresses and no tensors: whoever queues
// it answers for the memory (memory.h). Every queue may be slowed at random, so that an order that nobody asked for
// does not come about by luck. Errors of a job are kept and thrown at the device's next synchronisation or operator.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>

namespace guarded {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr int kStreams = 5;  // of a device: the default one, and four that are asked for in turn

class WorkQueue {
 public:
  using Job = std::function<void()>;

  WorkQueue(c10::DeviceIndex device, int64_t id);
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  c10::DeviceIndex device() const { return device_; }
  c10::Stream stream() const { return c10::Stream(c10::Stream::UNSAFE, {kDevice, device_}, id_); }

  void push(Job job);
  // Jobs are numbered from 1: the last one that was queued, whether the one of a number has run, and a wait for it.
  uint64_t last() const;
  bool done(uint64_t number) const;
  void wait(uint64_t number) const;
  // What is queued here from now on runs after what was queued there until now.
  void follow(const WorkQueue& other, uint64_t number);

  // Before a job that is queued from now on the thread sleeps with this probability: that long, or up to that long.
  void set_delay(int microseconds, int per_mille, bool exactly);
  void set_seed(uint64_t seed);

 private:
  struct Delayed {
    Job job;
    std::chrono::microseconds delay;
  };

  void work();
  std::chrono::microseconds drawn_delay();  // under the mutex

  const c10::DeviceIndex device_;
  const int64_t id_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Delayed> jobs_;
  uint64_t queued_ = 0, run_ = 0;
  bool started_ = false;
  int microseconds_ = 50, per_mille_ = 200;
  bool exactly_ = false;
  std::minstd_rand random_;
};

// The queue of a stream; refuses one that the device does not have.
WorkQueue& queue_of(c10::Stream stream);
void for_each_queue(const std::function<void(WorkQueue&)>& action);

// Of the calling thread.
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // the one it was; below 0: no change
WorkQueue& current_queue(c10::DeviceIndex device);
WorkQueue& exchange_queue(WorkQueue& queue);  // of the queue's device; the one it was
WorkQueue& next_of_pool(c10::DeviceIndex device);

// Throws what a job of the device threw since the last call, once.
void throw_kept(c10::DeviceIndex device);
void synchronize(const WorkQueue& queue);
void synchronize(c10::DeviceIndex device);
// Waits for all, and throws nothing.
void drain() noexcept;

uint64_t jobs_queued();

}  // namespace guarded

// Threads that run the nodes of graphs side by side: Eigen's work-stealing pool, which others' runtimes are built on.
//
// A thread without work looks for some for a while (one of them at a time, some hundred microseconds), then sleeps;
// without spinning it sleeps at once. So cores are left to what runs inside nodes. Knows no torch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace ortmodule {

class InterOpPool {
 public:
  // At least one thread. Throws kRuntime where the system gives none.
  InterOpPool(size_t threads, bool spin);
  // Waits for what was scheduled.
  ~InterOpPool();
  InterOpPool(const InterOpPool&) = delete;
  InterOpPool& operator=(const InterOpPool&) = delete;

  size_t size() const { return threads_; }
  // Runs `job` on one of the threads, or, where thousands wait, at once on this one. It must not throw.
  void schedule(std::function<void()> job);
  // Whether its threads are there: a process that was forked has none of its parent's.
  bool alive() const;

  // Whether the caller is a thread of any pool: it must not wait for others.
  static bool on_worker();

  // The process's: made with `threads` where it is not there yet.
  static std::shared_ptr<InterOpPool> global(size_t threads);
  // Another one for sessions that are made from now on; the old one goes with the last that has it.
  static void set_global(size_t threads, bool spin);

 private:
  struct Threads;
  const size_t threads_;
  const int process_;
  Threads* pool_;  // threads read it until they end: not a pointer that its destructor clears
};

}  // namespace ortmodule

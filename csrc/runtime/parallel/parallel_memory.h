// The memory of a session's parallel runs on the CPU: one arena whose pages stay from run to run.
//
// Which values are alive together differs from run to run, so that no place can be planned as for runs of one thread
// (runtime/step_memory.h): large blocks get places as they come, and go when their values do, which is when the last
// reader has ended. How large the arena has to be is learned from the runs before, and so is which steps make what
// lives on when a run is over: that is left to torch's allocator, for it would keep the arena from the next run. One
// run of a session at a time is served so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cpu_allocations.h"
#include "device/cpu_arena.h"

namespace ortmodule {

class ParallelMemory : public std::enable_shared_from_this<ParallelMemory> {
 public:
  explicit ParallelMemory(size_t steps) : leaves_(steps, 0) {}
  ~ParallelMemory();

  class Run;
  // Serves what one thread allocates, from step to step. Several belong to a run.
  class Worker : public CpuAllocationServer {
   public:
    explicit Worker(std::shared_ptr<Run> run) : run_(std::move(run)) {}
    void set_step(size_t step) { step_ = static_cast<uint32_t>(step); }
    Answer allocate(size_t bytes) override;
    void freed(void* data, bool own, uint32_t tag) noexcept override;

   private:
    const std::shared_ptr<Run> run_;
    uint32_t step_ = 0;
  };

  class Run {
   public:
    Run(std::weak_ptr<ParallelMemory> owner, std::shared_ptr<CpuArena> arena, std::vector<char> leaves)
        : owner_(std::move(owner)), arena_(std::move(arena)), leaves_(std::move(leaves)) {}
    CpuAllocationServer::Answer allocate(size_t bytes, uint32_t step);
    void freed(void* data, bool own, uint32_t tag) noexcept;
    // The run is over; what is alive now leaves it. `whole`: it came to its end, and there is something to learn.
    void end(bool whole);

   private:
    struct Block {
      size_t bytes;
      uint32_t step;
      bool alive;
    };
    const std::weak_ptr<ParallelMemory> owner_;
    std::mutex mutex_;  // of all below
    std::shared_ptr<CpuArena> arena_;
    const std::vector<char> leaves_;
    std::vector<Block> blocks_;
    size_t now_ = 0, peak_ = 0, owned_ = 0;
    bool missed_ = false, over_ = false;
  };

  // Null while another run goes on.
  std::shared_ptr<Run> begin();

 private:
  void learn(const std::vector<uint32_t>& leaving, size_t peak, bool missed);
  void end_run();

  std::mutex mutex_;
  std::vector<char> leaves_;  // by step
  size_t need_ = 0;
  bool running_ = false;
};

}  // namespace ortmodule

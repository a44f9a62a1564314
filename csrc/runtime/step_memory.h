// The memory of a session's runs on the CPU: a pattern of who lives where, learned from the first run of each size.
//
// Note [Memory pattern]
// The first run with given sizes is served by torch's allocator (or from what is free in the arena that an earlier size
// of the session left) and writes down every large allocation: its size, and when it was freed, in a clock that counts
// allocations. What it holds over both halves, gradients included, is then packed (plan/memory_packer.h), and from the
// second run on allocation k of step s gets its own place in an arena whose pages stay. Kernels know nothing of this:
// they allocate through ATen as ever, temporaries of ATen's own included.
//
// A place is only given when nobody lives there (CpuArena::allocate_at). Whatever differs from the recorded run (an
// output that the caller holds longer, a size that depends on data, a hook that keeps a gradient) therefore costs an
// ordinary allocation, never a wrong value; the pattern learns from it at the next run: what lived on when a run began
// is left to torch's allocator from then on, and other differences are recorded anew.
//
// One run of a session at a time is served so; what is outstanding beside it is torch's. The arenas are the process's:
// Note [Two arenas of a run].
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cpu_allocations.h"
#include "device/cpu_arena.h"
#include "ortmodule/export.h"
#include "runtime/arena_pool.h"

namespace ortmodule {

// One allocation of the recorded run.
struct PlannedBlock {
  size_t bytes = 0;
  uint32_t first = 0, end = 0;  // alive in [first, end) of the clock
  bool lasts = false;           // lived on when its run was over
  bool outlives = false;        // lived on when the next run began: left to torch's allocator
  ArenaPool::Kind arena = ArenaPool::kPassing;
  size_t offset = 0;
};

struct MemoryPattern {
  std::vector<PlannedBlock> blocks;
  std::vector<uint32_t> step_begin;  // first block of each step that ran, in order; then the number of blocks
  const void* backward = nullptr;    // which backward program ran
  size_t forward_steps = 0;
  ArenaPool::Sizes arena_bytes{};
  int recordings = 0;
  bool stale = true;  // to be recorded (again)
};

class StepMemory : public std::enable_shared_from_this<StepMemory> {
 public:
  class Run;
  using Arenas = std::array<std::shared_ptr<CpuArena>, ArenaPool::kKinds>;
  ~StepMemory();

  // A run's hold on the arena; goes with the run's frame.
  class Lease {
   public:
    explicit Lease(std::shared_ptr<Run> run) : run_(std::move(run)) {}
    ~Lease();
    const std::shared_ptr<Run>& run() const { return run_; }

   private:
    std::shared_ptr<Run> run_;
  };

  // `key`: whatever the sizes of a run depend on. Null while another run is outstanding.
  std::shared_ptr<Lease> begin(const std::vector<int64_t>& key);

  // Size of the two arenas that the largest pattern so far needs.
  size_t arena_bytes() const;
  // That of the sizes that ran last, as far as it is learned: from the second run of a size on. Empty before.
  MemoryPattern pattern() const;
  // Large allocations of planned runs that got no place in the arena, over all runs that are over.
  int64_t unplanned() const;

 private:
  // What the run before teaches its pattern.
  void learn();
  void end_lease();

  mutable std::mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<const MemoryPattern>> patterns_;
  std::shared_ptr<Run> last_;
  std::vector<int64_t> last_key_;
  bool leased_ = false;
  int64_t unplanned_ = 0;
};

// Serves one run. The executor says which half and which step runs.
class StepMemory::Run : public CpuAllocationServer {
 public:
  Run(std::weak_ptr<StepMemory> owner, std::shared_ptr<const MemoryPattern> pattern, Arenas arenas);

  void begin_backward(const void* program);
  // The next step of the half begins.
  void step() {
    if (aside_) return;
    if (recording_) {
      record_.step_begin.push_back(static_cast<uint32_t>(record_.blocks.size()));
    } else if (step_ + 1 < pattern_->step_begin.size()) {
      next_ = pattern_->step_begin[step_];
      limit_ = pattern_->step_begin[step_ + 1];
    } else {
      next_ = limit_ = 0;
    }
    ++step_;
  }

  Answer allocate(size_t bytes) override;
  void freed(void* data, bool own, uint32_t tag) noexcept override;

 private:
  friend class StepMemory;
  friend class Lease;

  void end();  // of the lease

  const std::weak_ptr<StepMemory> owner_;
  const std::shared_ptr<const MemoryPattern> pattern_;
  Arenas arenas_;  // let go when the run is over and their last block is free
  const bool recording_;
  std::mutex mutex_;
  MemoryPattern record_;      // while recording
  std::vector<char> alive_;   // by block
  std::vector<char> lasted_;  // those that lived on when the run was over
  size_t step_ = 0;           // steps begun, over both halves
  uint32_t next_ = 0, limit_ = 0;
  ArenaPool::Sizes owned_{};  // how many blocks of the arenas are alive
  bool over_ = false;
  bool backward_begun_ = false;
  bool aside_ = false;  // this half is not the recorded one: torch serves it
  int64_t unplanned_ = 0;
  size_t heap_bytes_ = 0;  // that torch's allocator gave while recording
};

// Gives back the arenas that no run and no tensor uses.
ORTMODULE_API void release_step_memory();

}  // namespace ortmodule

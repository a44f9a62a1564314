// Lets a run serve the CPU allocations that ATen makes while it executes.
//
// Note [Allocations of a run]
// Kernels allocate through ATen, which asks c10's CPU allocator. Ours takes that place and passes every request on,
// except for large ones of a thread inside a CpuAllocationScope: those are offered to the scope's server. Everything
// else in the process (the user's tensors, optimizers, data loaders) gets torch's allocator as before. Blocks of a
// server are known by their address until they are freed, on whatever thread, so that they may outlive the run, its
// session and the module: they keep their server alive. Large blocks are counted on the Allowance of the thread's run
// (base/limits.h), where it has one, whoever serves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ortmodule {

class CpuAllocationServer : public std::enable_shared_from_this<CpuAllocationServer> {
 public:
  struct Answer {
    void* data = nullptr;  // null: torch's allocator serves
    bool watch = false;    // tell freed() when the block goes, also where torch's allocator served
    uint32_t tag = 0;      // handed back to freed()
  };
  virtual ~CpuAllocationServer() = default;
  virtual Answer allocate(size_t bytes) = 0;
  // Where torch's allocator served a block that is watched.
  virtual void placed(void* /*data*/, uint32_t /*tag*/) noexcept {}
  // `own`: the block is one that allocate() gave. Called on any thread; must not allocate through ATen.
  virtual void freed(void* data, bool own, uint32_t tag) noexcept = 0;
};

class CpuAllocationScope {
 public:
  // Smaller blocks stay with malloc, which keeps their pages anyway.
  static constexpr size_t kMinimumBytes = size_t{32} << 10;

  // A null server changes nothing. The first scope of a process puts our allocator in place. The caller holds the
  // server, by a shared_ptr, for as long as the scope.
  explicit CpuAllocationScope(CpuAllocationServer* server);
  ~CpuAllocationScope() { pause(); }
  // Between the two, torch's allocator serves (or the scope around this one).
  void pause() {
    if (slot_) *slot_ = before_;
  }
  void resume() {
    if (slot_) *slot_ = server_;
  }
  CpuAllocationScope(const CpuAllocationScope&) = delete;
  CpuAllocationScope& operator=(const CpuAllocationScope&) = delete;

 private:
  CpuAllocationServer* const server_;
  CpuAllocationServer* before_ = nullptr;
  CpuAllocationServer** slot_ = nullptr;  // the thread's; null: the scope changes nothing
};

}  // namespace ortmodule

#include "device/cpu_allocations.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/limits.h"
#include "device/small_block_scope.h"

namespace ortmodule {
namespace {

thread_local CpuAllocationServer* current = nullptr;

class RunAllocator final : public c10::Allocator {
 public:
  explicit RunAllocator(c10::Allocator* torch) : torch_(torch) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes <= SmallBlocks::kLargest)
      if (void* data = SmallBlocks::take(bytes)) return {data, data, &SmallBlocks::give, c10::Device(c10::kCPU)};
    const std::shared_ptr<Allowance>& allowance = Allowance::current();
    if (bytes < CpuAllocationScope::kMinimumBytes || (!current && !allowance)) return torch_->allocate(bytes);
    const bool counted = allowance && allowance->counts();
    if (counted) allowance->take(bytes);
    CpuAllocationServer::Answer answer;
    void* data = nullptr;
    try {
      if (current) answer = current->allocate(bytes);
      if (!answer.data && allowance && !counted) allowance->take(bytes);  // what the server has is in use already
      if (!answer.data && !answer.watch && !counted) return torch_->allocate(bytes);
      data = answer.data ? answer.data : torch_->raw_allocate(bytes);
    } catch (...) {
      if (counted) allowance->give(bytes);
      if (answer.watch) current->freed(nullptr, false, answer.tag);
      throw;
    }
    const bool served = answer.data || answer.watch;
    if (served && !answer.data) current->placed(data, answer.tag);
    Block block{served ? current->shared_from_this() : nullptr, answer.data != nullptr, answer.tag,
                counted ? allowance : nullptr, bytes};
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& here = blocks_[data];
    if (here.bytes)
      block.under = std::make_shared<Block>(std::move(here));  // the server has it from who holds that one
    here = std::move(block);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  // raw_allocate() and raw_deallocate() may be called in different places, one inside a run and one outside.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // Lives as long as the process: storages keep a pointer to it, and tensors are freed at exit.
  static void install() {
    static RunAllocator* const instance = [] {
      auto* made = new RunAllocator(c10::GetCPUAllocator());
      // A higher priority than the default's only where that one is in place; another allocator of the user's wins.
      c10::SetCPUAllocator(made, 0);
      allocator = made;
      return made;
    }();
    (void)instance;
  }

 private:
  struct Block {
    std::shared_ptr<CpuAllocationServer> server;
    bool own = false;
    uint32_t tag = 0;
    std::shared_ptr<Allowance> allowance;    // that the bytes are counted on
    size_t bytes = 0;                        // 0: there is none
    std::shared_ptr<Block> under = nullptr;  // one at the same address, which outlives this one
  };

  static void release(void* data) {
    if (!data) return;
    if (SmallBlocks::owns(data)) return SmallBlocks::give(data);
    Block block;
    {
      const std::lock_guard<std::mutex> lock(allocator->mutex_);
      const auto it = allocator->blocks_.find(data);
      if (it != allocator->blocks_.end()) {
        block = std::move(it->second);
        if (block.under)
          it->second = std::move(*block.under);
        else
          allocator->blocks_.erase(it);
      }
    }
    if (!block.server || !block.own) allocator->torch_->raw_deallocate(data);
    if (block.server) block.server->freed(data, block.own, block.tag);
    if (block.allowance) block.allowance->give(block.bytes);
  }

  static RunAllocator* allocator;
  c10::Allocator* torch_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};

RunAllocator* RunAllocator::allocator = nullptr;

}  // namespace

SmallBlockScope::SmallBlockScope(bool on) : on_(on) {
  if (!on_) return;
  RunAllocator::install();
  before_ = SmallBlocks::serve(true);
}

SmallBlockScope::~SmallBlockScope() {
  if (on_) SmallBlocks::serve(before_);
}

CpuAllocationScope::CpuAllocationScope(CpuAllocationServer* server) : server_(server) {
  if (!server) return;
  RunAllocator::install();
  slot_ = &current;
  before_ = std::exchange(current, server);
}

}  // namespace ortmodule

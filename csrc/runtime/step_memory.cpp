#include "runtime/step_memory.h"

#include <algorithm>

#include "plan/memory_packer.h"

namespace ortmodule {
namespace {

// A pattern that differs from run to run is recorded again only so often.
constexpr int kMaxRecordings = 8;
constexpr size_t kMaxPatterns = 256;

// Arenas between runs, shared by all sessions of the process: training and evaluation use the same pages.
class ArenaPool {
 public:
  static ArenaPool& instance() {
    static ArenaPool* const pool = new ArenaPool;  // tensors may be freed at exit
    return *pool;
  }

  // An arena of at least `bytes`, `preferred` if it is idle; null for 0 bytes when none is idle.
  std::shared_ptr<CpuArena> take(size_t bytes, const std::shared_ptr<CpuArena>& preferred) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if ((*it)->capacity() < bytes) continue;
      if (*it == preferred) {
        best = it;
        break;
      }
      if ((*it)->in_use() == 0 && (best == idle_.end() || (*it)->capacity() < (*best)->capacity())) best = it;
    }
    if (best != idle_.end()) {
      std::shared_ptr<CpuArena> arena = std::move(*best);
      idle_.erase(best);
      return arena;
    }
    if (bytes == 0) return nullptr;
    idle_.clear();  // the old pages go before the new ones come; blocks that still live keep theirs
    return std::make_shared<CpuArena>(bytes);
  }

  void give(std::shared_ptr<CpuArena> arena) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(arena));
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<CpuArena>> idle_;
};

void pack(MemoryPattern& pattern) {
  std::vector<BlockLifetime> lifetimes;
  std::vector<PlannedBlock*> planned;
  for (PlannedBlock& block : pattern.blocks) {
    if (block.outlives) continue;
    lifetimes.push_back({block.bytes, block.first, block.end});
    planned.push_back(&block);
  }
  const Packing packing = pack_memory(lifetimes, CpuArena::kAlignment);
  for (size_t i = 0; i < planned.size(); ++i) planned[i]->offset = packing.offsets[i];
  pattern.arena_bytes = packing.bytes;
}

// A block's size and lifetime are the largest that any recording of the same allocations saw.
void merge(MemoryPattern& fresh, const MemoryPattern& old) {
  if (fresh.step_begin != old.step_begin) return;
  for (size_t i = 0; i < fresh.blocks.size(); ++i) {
    PlannedBlock& block = fresh.blocks[i];
    block.bytes = std::max(block.bytes, old.blocks[i].bytes);
    block.end = std::max(block.end, old.blocks[i].end);
    block.outlives = block.outlives || old.blocks[i].outlives;
  }
}

}  // namespace

void release_step_memory() { ArenaPool::instance().clear(); }

StepMemory::~StepMemory() { release_step_memory(); }

StepMemory::Lease::~Lease() {
  run_->end();
  if (const std::shared_ptr<StepMemory> owner = run_->owner_.lock()) owner->end_lease();
}

void StepMemory::end_lease() {
  const std::lock_guard<std::mutex> lock(mutex_);
  leased_ = false;
}

std::shared_ptr<StepMemory::Lease> StepMemory::begin(const std::vector<int64_t>& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (leased_) return nullptr;
  if (last_) learn();
  if (patterns_.size() >= kMaxPatterns && !patterns_.count(key)) patterns_.clear();
  std::shared_ptr<const MemoryPattern>& pattern = patterns_[key];
  if (!pattern) pattern = std::make_shared<MemoryPattern>();
  if (pattern->blocks.empty() && !pattern->stale) return nullptr;
  // While recording, whatever an earlier size left serves as far as it goes.
  std::shared_ptr<CpuArena> arena =
      ArenaPool::instance().take(pattern->stale ? 0 : pattern->arena_bytes, arena_.lock());
  if (arena) arena_ = arena;
  last_ = std::make_shared<Run>(weak_from_this(), pattern, std::move(arena));
  last_key_ = key;
  leased_ = true;
  return std::make_shared<Lease>(last_);
}

void StepMemory::learn() {
  const std::shared_ptr<Run> run = std::move(last_);
  last_ = nullptr;
  const std::lock_guard<std::mutex> lock(run->mutex_);
  unplanned_ += run->unplanned_;
  const auto entry = patterns_.find(last_key_);
  if (entry == patterns_.end() || entry->second != run->pattern_) return;
  const bool lived_on = std::find(run->alive_.begin(), run->alive_.end(), 1) != run->alive_.end();
  if (!run->recording_ && !lived_on && run->unplanned_ == 0) return;

  auto pattern = std::make_shared<MemoryPattern>(run->recording_ ? run->record_ : *run->pattern_);
  for (size_t i = 0; i < run->alive_.size(); ++i)
    if (run->alive_[i]) pattern->blocks[i].outlives = true;
  if (run->recording_) {
    pattern->step_begin.push_back(static_cast<uint32_t>(pattern->blocks.size()));
    pattern->recordings = run->pattern_->recordings + 1;
    pattern->stale = false;
    merge(*pattern, *run->pattern_);
  } else if (!lived_on) {
    pattern->stale = pattern->recordings < kMaxRecordings;
  }
  pack(*pattern);
  entry->second = std::move(pattern);
}

size_t StepMemory::arena_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [key, pattern] : patterns_) bytes = std::max(bytes, pattern->arena_bytes);
  return bytes;
}

int64_t StepMemory::unplanned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return unplanned_;
}

StepMemory::Run::Run(std::weak_ptr<StepMemory> owner, std::shared_ptr<const MemoryPattern> pattern,
                     std::shared_ptr<CpuArena> arena)
    : owner_(std::move(owner)), pattern_(std::move(pattern)), arena_(std::move(arena)), recording_(pattern_->stale) {
  if (!recording_) alive_.assign(pattern_->blocks.size(), 0);
}

void StepMemory::Run::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  if (!arena_) return;
  ArenaPool::instance().give(arena_);
  if (owned_ == 0) arena_.reset();
}

void StepMemory::Run::begin_backward(const void* program) {
  if (recording_) {
    // A second backward over a kept graph is not part of the pattern.
    aside_ = backward_begun_;
    if (!backward_begun_) {
      record_.backward = program;
      record_.forward_steps = step_;
    }
  } else {
    aside_ = backward_begun_ || program != pattern_->backward;
    step_ = pattern_->forward_steps;
    if (aside_ && !backward_begun_) ++unplanned_;
  }
  backward_begun_ = true;
}

CpuAllocationServer::Answer StepMemory::Run::allocate(size_t bytes) {
  if (aside_) return {};
  if (recording_) {
    void* data = arena_ ? arena_->allocate(bytes) : nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto tag = static_cast<uint32_t>(record_.blocks.size());
    record_.blocks.push_back({bytes, tag, tag + 1, false, 0});
    alive_.push_back(1);
    owned_ += data != nullptr;
    return {data, true, tag};
  }
  if (next_ < limit_ && bytes <= pattern_->blocks[next_].bytes) {
    const uint32_t tag = next_++;
    const PlannedBlock& block = pattern_->blocks[tag];
    if (block.outlives) return {};
    if (void* data = arena_->allocate_at(block.offset, block.bytes)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      alive_[tag] = 1;
      ++owned_;
      return {data, true, tag};
    }
  }
  ++unplanned_;
  return {};
}

void StepMemory::Run::freed(void* data, bool own, uint32_t tag) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (own) {
    arena_->free(data, (recording_ ? record_ : *pattern_).blocks[tag].bytes);
    if (--owned_ == 0 && over_) arena_.reset();
  }
  alive_[tag] = 0;
  if (recording_) record_.blocks[tag].end = static_cast<uint32_t>(record_.blocks.size());
}

}  // namespace ortmodule

#include "runtime/step_memory.h"

#include <algorithm>

#include "plan/memory_packer.h"

namespace ortmodule {
namespace {

// A pattern that differs from run to run is recorded again only so often.
constexpr int kMaxRecordings = 8;
constexpr size_t kMaxPatterns = 256;
// What a recorded run leaves free in malloc's heap is not needed beside the arena; below this it is not worth a walk.
constexpr size_t kTrimBytes = size_t{8} << 20;

void pack(MemoryPattern& pattern) {
  std::vector<BlockLifetime> lifetimes;
  std::vector<char> lasting;
  std::vector<PlannedBlock*> planned;
  for (PlannedBlock& block : pattern.blocks) {
    if (block.outlives) continue;
    lifetimes.push_back({block.bytes, block.first, block.end});
    lasting.push_back(block.lasts);
    planned.push_back(&block);
  }
  const PackingApart packing = pack_memory_apart(lifetimes, lasting, CpuArena::kAlignment);
  for (size_t i = 0; i < planned.size(); ++i) {
    planned[i]->arena = packing.in_first[i] ? ArenaPool::kLasting : ArenaPool::kPassing;
    planned[i]->offset = packing.offsets[i];
  }
  pattern.arena_bytes[ArenaPool::kLasting] = packing.first_bytes;
  pattern.arena_bytes[ArenaPool::kPassing] = packing.second_bytes;
}

// A block's size and lifetime are the largest that any recording of the same allocations saw.
void merge(MemoryPattern& fresh, const MemoryPattern& old) {
  if (fresh.step_begin != old.step_begin) return;
  for (size_t i = 0; i < fresh.blocks.size(); ++i) {
    PlannedBlock& block = fresh.blocks[i];
    block.bytes = std::max(block.bytes, old.blocks[i].bytes);
    block.end = std::max(block.end, old.blocks[i].end);
    block.lasts = block.lasts || old.blocks[i].lasts;
    block.outlives = block.outlives || old.blocks[i].outlives;
  }
}

}  // namespace

void release_step_memory() { ArenaPool::instance().clear(); }

StepMemory::~StepMemory() { ArenaPool::instance().forget(this); }

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
  Arenas arenas;
  ArenaPool& pool = ArenaPool::instance();
  if (!pattern->stale) {
    for (const auto kind : {ArenaPool::kPassing, ArenaPool::kLasting})
      arenas[kind] = pool.take(kind, pattern->arena_bytes[kind]);
  } else if (patterns_.size() > 1 || pattern->recordings > 0) {
    // Whatever an earlier size left serves as far as it goes.
    arenas[ArenaPool::kPassing] = pool.take_any(ArenaPool::kPassing);
  }
  last_ = std::make_shared<Run>(weak_from_this(), pattern, std::move(arenas));
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
  bool lasted = false;  // what was not known to
  for (size_t i = 0; i < run->lasted_.size() && !run->recording_; ++i)
    lasted |= run->lasted_[i] && !run->pattern_->blocks[i].lasts;
  if (!run->recording_ && !lived_on && !lasted && run->unplanned_ == 0) return;

  auto pattern = std::make_shared<MemoryPattern>(run->recording_ ? run->record_ : *run->pattern_);
  for (size_t i = 0; i < run->alive_.size(); ++i)
    if (run->alive_[i]) pattern->blocks[i].outlives = true;
  for (size_t i = 0; i < run->lasted_.size(); ++i)
    if (run->lasted_[i]) pattern->blocks[i].lasts = true;
  if (run->recording_) {
    if (run->heap_bytes_ >= kTrimBytes) trim_heap();
    pattern->step_begin.push_back(static_cast<uint32_t>(pattern->blocks.size()));
    pattern->recordings = run->pattern_->recordings + 1;
    pattern->stale = false;
    merge(*pattern, *run->pattern_);
  } else if (!lived_on && !lasted) {
    pattern->stale = pattern->recordings < kMaxRecordings;
  }
  pack(*pattern);
  entry->second = std::move(pattern);
  ArenaPool::Sizes need{};
  for (const auto& [key, known] : patterns_)
    for (size_t kind = 0; kind < need.size(); ++kind) need[kind] = std::max(need[kind], known->arena_bytes[kind]);
  ArenaPool::instance().need(this, need);
}

size_t StepMemory::arena_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [key, pattern] : patterns_)
    bytes = std::max(bytes, pattern->arena_bytes[ArenaPool::kPassing] + pattern->arena_bytes[ArenaPool::kLasting]);
  return bytes;
}

MemoryPattern StepMemory::pattern() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = patterns_.find(last_key_);
  return known == patterns_.end() ? MemoryPattern() : *known->second;
}

int64_t StepMemory::unplanned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return unplanned_;
}

StepMemory::Run::Run(std::weak_ptr<StepMemory> owner, std::shared_ptr<const MemoryPattern> pattern, Arenas arenas)
    : owner_(std::move(owner)), pattern_(std::move(pattern)), arenas_(std::move(arenas)), recording_(pattern_->stale) {
  if (!recording_) alive_.assign(pattern_->blocks.size(), 0);
}

void StepMemory::Run::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  lasted_ = alive_;
  for (const auto kind : {ArenaPool::kPassing, ArenaPool::kLasting}) {
    if (!arenas_[kind]) continue;
    ArenaPool::instance().give(kind, arenas_[kind]);
    if (owned_[kind] == 0) arenas_[kind].reset();
  }
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
    constexpr auto kind = ArenaPool::kPassing;
    void* data = arenas_[kind] ? arenas_[kind]->allocate(bytes) : nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto tag = static_cast<uint32_t>(record_.blocks.size());
    PlannedBlock block;
    block.bytes = bytes;
    block.first = tag;
    block.end = tag + 1;
    record_.blocks.push_back(block);
    alive_.push_back(1);
    owned_[kind] += data != nullptr;
    if (!data) heap_bytes_ += bytes;
    return {data, true, tag};
  }
  if (next_ < limit_ && bytes <= pattern_->blocks[next_].bytes) {
    const uint32_t tag = next_++;
    const PlannedBlock& block = pattern_->blocks[tag];
    if (block.outlives) return {};
    if (void* data = arenas_[block.arena]->allocate_at(block.offset, block.bytes)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      alive_[tag] = 1;
      ++owned_[block.arena];
      return {data, true, tag};
    }
  }
  ++unplanned_;
  return {};
}

void StepMemory::Run::freed(void* data, bool own, uint32_t tag) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (own) {
    const PlannedBlock& block = (recording_ ? record_ : *pattern_).blocks[tag];
    arenas_[block.arena]->free(data, block.bytes);
    if (--owned_[block.arena] == 0 && over_) arenas_[block.arena].reset();
  }
  alive_[tag] = 0;
  if (recording_) record_.blocks[tag].end = static_cast<uint32_t>(record_.blocks.size());
}

}  // namespace ortmodule

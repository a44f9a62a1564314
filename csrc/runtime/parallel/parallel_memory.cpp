#include "runtime/parallel/parallel_memory.h"

#include <algorithm>

#include "runtime/arena_pool.h"

namespace ortmodule {

ParallelMemory::~ParallelMemory() { ArenaPool::instance().forget(this); }

std::shared_ptr<ParallelMemory::Run> ParallelMemory::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_) return nullptr;
  running_ = true;
  return std::make_shared<Run>(weak_from_this(), ArenaPool::instance().take(ArenaPool::kPassing, need_), leaves_);
}

void ParallelMemory::learn(const std::vector<uint32_t>& leaving, size_t peak, bool missed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t step : leaving) leaves_[step] = 1;
  // An eighth is for what lies between blocks of other sizes; where that was too little, more, up to twice the bytes.
  const size_t before = need_;
  need_ = std::max(need_, peak + peak / 8);
  if (missed && need_ == before) need_ = std::max(need_, std::min(need_ + need_ / 4, 2 * peak));
  if (need_ != before) ArenaPool::instance().need(this, {need_, 0});
}

void ParallelMemory::end_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
}

CpuAllocationServer::Answer ParallelMemory::Worker::allocate(size_t bytes) { return run_->allocate(bytes, step_); }

void ParallelMemory::Worker::freed(void* data, bool own, uint32_t tag) noexcept { run_->freed(data, own, tag); }

CpuAllocationServer::Answer ParallelMemory::Run::allocate(size_t bytes, uint32_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (leaves_[step]) return {};
  void* const data = arena_ ? arena_->allocate(bytes) : nullptr;
  const auto tag = static_cast<uint32_t>(blocks_.size());
  blocks_.push_back({bytes, step, true});
  now_ += bytes;
  peak_ = std::max(peak_, now_);
  owned_ += data != nullptr;
  missed_ = missed_ || !data;
  return {data, true, tag};
}

void ParallelMemory::Run::freed(void* data, bool own, uint32_t tag) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block& block = blocks_[tag];
  block.alive = false;
  now_ -= block.bytes;
  if (!own) return;
  arena_->free(data, block.bytes);
  if (--owned_ == 0 && over_) arena_.reset();
}

void ParallelMemory::Run::end(bool whole) {
  const std::shared_ptr<ParallelMemory> owner = owner_.lock();
  const std::lock_guard<std::mutex> lock(mutex_);
  over_ = true;
  if (owner && whole) {
    std::vector<uint32_t> leaving;
    for (const Block& block : blocks_)
      if (block.alive) leaving.push_back(block.step);
    owner->learn(leaving, peak_ - now_, missed_);
  }
  if (arena_) ArenaPool::instance().give(ArenaPool::kPassing, arena_);
  if (owned_ == 0) arena_.reset();
  if (owner) owner->end_run();
}

}  // namespace ortmodule

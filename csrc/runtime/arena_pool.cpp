#include "runtime/arena_pool.h"

#include <algorithm>

namespace ortmodule {
namespace {

// One that was not used for so many uses of its kind is more than the process needs: runs that are outstanding
// together, and several threads, take a few in turns.
constexpr uint64_t kUnused = 16;

}  // namespace

ArenaPool& ArenaPool::instance() {
  static ArenaPool* const pool = new ArenaPool;  // tensors may be freed at exit
  return *pool;
}

std::shared_ptr<CpuArena> ArenaPool::last_empty(Kind kind, size_t bytes) {
  auto& idle = idle_[kind];
  for (auto it = idle.rbegin(); it != idle.rend(); ++it) {
    if (it->arena->capacity() < bytes || it->arena->in_use() != 0) continue;
    std::shared_ptr<CpuArena> arena = std::move(it->arena);
    idle.erase(std::prev(it.base()));
    return arena;
  }
  return nullptr;
}

std::shared_ptr<CpuArena> ArenaPool::take(Kind kind, size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++uses_;
  auto& idle = idle_[kind];
  std::erase_if(idle, [&](const Idle& one) { return uses_ - one.used > kKinds * kUnused; });
  if (std::shared_ptr<CpuArena> arena = last_empty(kind, bytes)) return arena;
  // The old pages go before the new ones come.
  std::erase_if(idle, [](const Idle& one) { return one.arena->in_use() == 0; });
  if (kind == kPassing)
    for (const Idle& one : idle) one.arena->release_pages();
  return std::make_shared<CpuArena>(bytes);
}

std::shared_ptr<CpuArena> ArenaPool::take_any(Kind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_empty(kind, 0);
}

void ArenaPool::give(Kind kind, std::shared_ptr<CpuArena> arena) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (needed()[kind] == 0) return;  // its session is gone, and there is no other
  idle_[kind].push_back({std::move(arena), ++uses_});
}

void ArenaPool::need(const void* session, const Sizes& bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  needs_[session] = bytes;
}

void ArenaPool::forget(const void* session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (needs_.erase(session) == 0) return;
  const Sizes left = needed();
  for (size_t kind = 0; kind < kKinds; ++kind) trim(idle_[kind], left[kind]);
}

ArenaPool::Sizes ArenaPool::needed() const {
  Sizes most{};
  for (const auto& [session, bytes] : needs_)
    for (size_t kind = 0; kind < kKinds; ++kind) most[kind] = std::max(most[kind], bytes[kind]);
  return most;
}

void ArenaPool::trim(std::vector<Idle>& idle, size_t bytes) {
  if (bytes == 0) idle.clear();
  for (const Idle& one : idle)
    if (one.arena->capacity() > bytes) one.arena->release_pages(bytes);
}

void ArenaPool::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& idle : idle_) idle.clear();
}

size_t ArenaPool::idle_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& idle : idle_)
    for (const Idle& one : idle) bytes += one.arena->capacity();
  return bytes;
}

}  // namespace ortmodule

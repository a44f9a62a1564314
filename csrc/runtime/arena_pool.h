// Arenas between runs, shared by all sessions of a process: what it keeps is bounded by its largest steps, not by how
// many sessions there are.
//
// Note [Two arenas of a run]
// What lives on when a run is over (gradients, outputs) keeps its arena from being given to another session. So a run
// has two: one for what lives on, as large as that, and one for everything else, which is empty after each run and
// serves every session in turn. plan/memory_packer.h packs both as if they were one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cpu_arena.h"

namespace ortmodule {

class ArenaPool {
 public:
  enum Kind { kPassing, kLasting, kKinds };
  // Bytes of each kind.
  using Sizes = std::array<size_t, kKinds>;

  static ArenaPool& instance();

  // An empty arena of at least `bytes`, the one used last if there are several, else a new one; null for 0 bytes.
  std::shared_ptr<CpuArena> take(Kind kind, size_t bytes);
  // The empty one used last, of any size; null when there is none.
  std::shared_ptr<CpuArena> take_any(Kind kind);
  void give(Kind kind, std::shared_ptr<CpuArena> arena);

  // What `session`'s largest step needs. When one goes, so do the pages that the others' steps do not reach.
  void need(const void* session, const Sizes& bytes);
  void forget(const void* session);

  // Drops the idle ones; blocks that still live keep theirs.
  void clear();
  // Bytes of the idle ones.
  size_t idle_bytes() const;

 private:
  struct Idle {
    std::shared_ptr<CpuArena> arena;
    uint64_t used;  // when, in a clock that counts uses
  };
  std::shared_ptr<CpuArena> last_empty(Kind kind, size_t bytes);
  Sizes needed() const;
  static void trim(std::vector<Idle>& idle, size_t bytes);

  mutable std::mutex mutex_;
  std::array<std::vector<Idle>, kKinds> idle_;  // in the order of their use
  std::map<const void*, Sizes> needs_;
  uint64_t uses_ = 0;
};

}  // namespace ortmodule

// What AddressSanitizer is told of memory that we hand out in parts, where it sees one block: which of it nobody may
// touch just now. Nothing is told in a build without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define ORTMODULE_HAS_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ORTMODULE_HAS_ASAN
#endif
#endif

#ifdef ORTMODULE_HAS_ASAN
#include <sanitizer/asan_interface.h>
// Of a function that keeps lists within memory that nobody may touch.
#define ORTMODULE_UNSEEN_BY_ASAN __attribute__((no_sanitize("address")))
#else
#define ORTMODULE_UNSEEN_BY_ASAN
#endif

namespace ortmodule {

inline void forbid_access([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef ORTMODULE_HAS_ASAN
  ASAN_POISON_MEMORY_REGION(memory, bytes);
#endif
}

// Of `bytes`, and not of what lies behind them up to the next block.
inline void allow_access([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef ORTMODULE_HAS_ASAN
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

}  // namespace ortmodule

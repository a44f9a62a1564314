#include "base/side_by_side.h"

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ortmodule {
namespace {

#ifdef __GLIBC__
// A heap with more holes of one size stays as it is.
constexpr size_t kMostHoles = 20'000;
constexpr size_t kHead = sizeof(size_t);  // glibc's, before each block

bool is_behind(void* before, void* block) {
  return static_cast<char*>(before) + malloc_usable_size(before) + kHead == block;
}
#endif

}  // namespace

SideBySide::SideBySide([[maybe_unused]] size_t bytes, [[maybe_unused]] size_t count) {
#ifdef __GLIBC__
  std::vector<void*> run;  // neighbours, the last ones that came
  run.reserve(count);
  while (run.size() < count && filled_.size() < kMostHoles) {
    void* const block = std::malloc(bytes);
    if (!block) break;
    if (!run.empty() && !is_behind(run.back(), block)) {
      filled_.insert(filled_.end(), run.begin(), run.end());
      run.clear();
    }
    run.push_back(block);
  }
  for (void* block : run) std::free(block);
#endif
}

SideBySide::~SideBySide() {
  for (void* block : filled_) std::free(block);
}

}  // namespace ortmodule

#include "base/side_by_side.h"

#include <malloc.h>

#include <cstdlib>

namespace ortmodule {
namespace {

// A heap with more holes of one size stays as it is.
constexpr size_t kMostHoles = 20'000;
constexpr size_t kHead = sizeof(size_t);  // glibc's, before each block

}  // namespace

SideBySide::SideBySide(size_t bytes, size_t count) {
  if (count < 2) return;
  std::vector<void*> run;  // neighbours, the last ones that came
  run.reserve(count);
  while (run.size() < count && filled_.size() < kMostHoles) {
    void* const block = std::malloc(bytes);
    if (!block) break;
    if (!run.empty() && static_cast<char*>(run.back()) + malloc_usable_size(run.back()) + kHead != block) {
      filled_.insert(filled_.end(), run.begin(), run.end());
      run.clear();
    }
    run.push_back(block);
  }
  for (void* block : run) std::free(block);
}

SideBySide::~SideBySide() {
  for (void* block : filled_) std::free(block);
}

}  // namespace ortmodule

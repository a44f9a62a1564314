// Blocks that malloc gives next lie side by side.
//
// A heap that has served a while is full of holes, and malloc fills those first: what is made then and walked over in
// every step lies in a page each. Where that matters the holes are filled before, and emptied again behind it.
#pragma once

#include <cstddef>
#include <vector>

namespace ortmodule {

class SideBySide {
 public:
  // While it lives, the next `count` blocks of `bytes` come from one piece of memory: as far as malloc is glibc's and
  // no other thread asks for blocks of that size. The rest of what it may do is to take a moment.
  SideBySide(size_t bytes, size_t count);
  ~SideBySide();
  SideBySide(const SideBySide&) = delete;
  SideBySide& operator=(const SideBySide&) = delete;

 private:
  std::vector<void*> filled_;  // the holes
};

}  // namespace ortmodule

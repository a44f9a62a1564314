// Tensors that a model has in its own bytes, put into a file instead of memory.
//
// Weights of products and convolutions are laid out anew for their kernels, and what they were before is then read by
// nobody, or seldom. Of a file that is mapped the system takes such pages back (base/mapped_pages.h); of memory it can
// not. Not here: tensors that lie in files already (external_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/shared_bytes.h"

namespace ortmodule {

class SetAside {
 public:
  static constexpr size_t kMinimumBytes = size_t{1} << 20;

  // `folder` empty: nothing is put aside. The file is made there at the first tensor, has no name, and goes with the
  // last who has bytes of it.
  explicit SetAside(std::string folder) : folder_(std::move(folder)) {}
  ~SetAside();
  SetAside(const SetAside&) = delete;
  SetAside& operator=(const SetAside&) = delete;

  // The same bytes, mapped; null where they are few, or nothing is to be put aside. Throws kInvalidArgument where no
  // file can be made in the folder, kRuntime where the system does not write.
  SharedBytes put(std::string_view bytes);

 private:
  const std::string folder_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace ortmodule

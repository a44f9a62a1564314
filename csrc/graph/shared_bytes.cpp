#include "graph/shared_bytes.h"

#include <algorithm>
#include <new>
#include <utility>

namespace ortmodule {

SharedBytes::SharedBytes(std::string bytes) {
  const auto kept = std::make_shared<const std::string>(std::move(bytes));
  bytes_ = *kept;
  owner_ = kept;
}

std::shared_ptr<char> SharedBytes::aligned_memory(size_t size) {
  constexpr auto kAlignment = std::align_val_t(kTensorAlignment);
  auto* const memory = static_cast<char*>(::operator new(std::max<size_t>(size, 1), kAlignment));
  return {memory, [](char* gone) { ::operator delete(gone, kAlignment); }};
}

}  // namespace ortmodule

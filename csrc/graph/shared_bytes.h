// Bytes that are shared and never changed: of a string, of a file in memory, of a file that is mapped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "ortmodule/export.h"

namespace ortmodule {

// What tensors of torch and vector instructions want of an address.
constexpr size_t kTensorAlignment = 64;
// From here on graph and tensors share bytes; fewer are copied.
constexpr size_t kManyBytes = 4096;

class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::nullptr_t) {}
  // Takes the string; its address is as it comes.
  ORTMODULE_API SharedBytes(std::string bytes);
  // `bytes` stay where they are while somebody has `owner`.
  SharedBytes(std::shared_ptr<const void> owner, std::string_view bytes) : owner_(std::move(owner)), bytes_(bytes) {}
  // New memory at a multiple of kTensorAlignment; `fill` is called once with its address.
  template <typename Fill>
  static SharedBytes aligned(size_t size, const Fill& fill) {
    const std::shared_ptr<char> memory = aligned_memory(size);
    fill(memory.get());
    return {memory, std::string_view(memory.get(), size)};
  }

  explicit operator bool() const { return owner_ != nullptr; }
  std::string_view operator*() const { return bytes_; }
  const std::string_view* operator->() const { return &bytes_; }
  // Who keeps the bytes.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  ORTMODULE_API static std::shared_ptr<char> aligned_memory(size_t size);

  std::shared_ptr<const void> owner_;
  std::string_view bytes_;
};

}  // namespace ortmodule

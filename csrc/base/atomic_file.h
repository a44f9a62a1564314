// A file that is there whole or not at all: bytes go to a file beside it, which then takes its place.
//
// A process that ends before commit(), or a machine that stops, leaves what was at the path before. What it leaves
// beside it is locked by nobody and goes with the next file that is written there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

class AtomicFile {
 public:
  // Throws kRuntime where the folder cannot be written.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throw kRuntime where the system does not write.
  void append(std::string_view bytes);
  void commit();
  uint64_t size() const { return size_; }

 private:
  void open_temporary();

  std::string path_, folder_, temporary_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace ortmodule

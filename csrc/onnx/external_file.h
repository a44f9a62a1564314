// Tensor data that lies in files beside the model.
//
// Note [External data]
// A model names such files, and whoever wrote the model chose the names. So a location is walked component by component
// with openat(O_NOFOLLOW) from the folder that the caller gave: '..', absolute paths and symbolic links are refused
// wherever they stand, and so is a file with a second hard link, which could be any file of the user's. All checks are
// made on the open descriptor; nothing can be exchanged between check and use.
//
// Caches of hubs are folders of links into a store. Where the caller names the folder that holds both, links are
// followed, and the file that is open then must lie in it: the system says where a descriptor's file is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/atomic_file.h"
#include "graph/shared_bytes.h"

namespace ortmodule {

class ExternalFiles {
 public:
  // `dir` empty: every read is refused. `root` not empty: links are followed to files that lie in it.
  explicit ExternalFiles(std::string dir, std::string root = {}) : dir_(std::move(dir)), root_(std::move(root)) {}
  ~ExternalFiles();
  ExternalFiles(const ExternalFiles&) = delete;
  ExternalFiles& operator=(const ExternalFiles&) = delete;

  // `length` bytes at `offset` of the file at `location`; `owner` names the tensor in errors. Many bytes that lie where
  // tensors want them are mapped, privately, and not read: the file must stay as it is while somebody has them.
  // Throws kInvalidArgument for a location that is refused, kInvalidGraph for a range outside the file.
  SharedBytes read(const std::string& location, uint64_t offset, uint64_t length, const std::string& owner);

 private:
  struct File {
    int descriptor;
    uint64_t size;
  };
  const File& open_file(const std::string& location, const std::string& owner);
  int open_beneath(const std::string& location, const std::string& owner) const;
  int open_linked(const std::string& location, const std::string& owner) const;
  static void fill(const File& file, char* to, uint64_t offset, uint64_t length, const std::string& what);

  std::string dir_, root_;
  std::map<std::string, File> files_;
};

// Writes `bytes` of several tensors into one new file and puts it in place at once.
class ExternalFileWriter {
 public:
  // Throws kInvalidArgument when `file` is no plain file name; kRuntime when the folder cannot be written.
  ExternalFileWriter(const std::string& dir, const std::string& file);

  // Appends at the next multiple of 4096, so that readers may map it; returns the offset.
  uint64_t append(std::string_view bytes);
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

}  // namespace ortmodule

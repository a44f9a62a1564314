#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/status.h"

namespace ortmodule {
namespace {

constexpr const char* kEnding = ".partial";

// Of this process alone, also where threads write to one path.
std::string fresh_number() {
  static std::atomic<unsigned> count{0};
  return std::to_string(::getpid()) + "." + std::to_string(count++);
}

bool is_temporary_of(const std::string& name, const std::string& file) {
  const std::string ending = kEnding;
  return name.size() > file.size() + ending.size() && name.compare(0, file.size() + 1, file + ".") == 0 &&
         name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

// What killed processes have left: who still writes a file holds its lock.
void remove_abandoned(const std::string& folder, const std::string& file) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (!is_temporary_of(entry.path().filename().string(), file)) continue;
    const int descriptor = ::open(entry.path().c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(entry.path().c_str());
    ::close(descriptor);
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  const std::filesystem::path whole(path);
  folder_ = whole.has_parent_path() ? whole.parent_path().string() : ".";
  remove_abandoned(folder_, whole.filename().string());
  // Another process may take a file for abandoned before its lock is there.
  for (int tries = 0; tries < 100; ++tries) {
    open_temporary();
    struct stat info{};
    if (::flock(descriptor_, LOCK_EX) == 0 && ::fstat(descriptor_, &info) == 0 && info.st_nlink == 1) return;
    ::close(descriptor_);
    descriptor_ = -1;
  }
  fail(ErrorCode::kRuntime, "cannot lock '", temporary_, "': ", std::strerror(errno));
}

void AtomicFile::open_temporary() {
  temporary_ = path_ + "." + fresh_number() + kEnding;
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  ORTMODULE_CHECK(descriptor_ >= 0, kRuntime, "cannot write '", temporary_, "': ", std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void AtomicFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    ORTMODULE_CHECK(n > 0, kRuntime, "writing '", temporary_, "' failed: ", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
    size_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  const bool written = ::fsync(descriptor_) == 0 && ::rename(temporary_.c_str(), path_.c_str()) == 0;
  ORTMODULE_CHECK(written, kRuntime, "cannot put '", path_, "' in place: ", std::strerror(errno));
  ::close(descriptor_);
  descriptor_ = -1;
  // The name is on the disk when its folder is. Some file systems have nothing to do for that, and say so.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace ortmodule

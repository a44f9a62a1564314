#include "onnx/set_aside.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "onnx/mapped_file.h"

namespace ortmodule {
namespace {

// One without a name from the start where the system has such files, else one whose name is gone at once.
int nameless_file(const std::string& folder) {
#ifdef O_TMPFILE
  if (const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); file >= 0) return file;
#endif
  std::string name = folder + "/ortmodule-XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) ::unlink(name.c_str());
  return file;
}

}  // namespace

SetAside::~SetAside() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SharedBytes SetAside::put(std::string_view bytes) {
  if (folder_.empty() || bytes.size() < kMinimumBytes) return {};
  if (descriptor_ < 0) descriptor_ = nameless_file(folder_);
  ORTMODULE_CHECK_ARG(descriptor_ >= 0, "no file can be made in the weights folder '", folder_,
                      "': ", std::strerror(errno));
  constexpr uint64_t kPage = 4096;
  const uint64_t start = (size_ + kPage - 1) / kPage * kPage;
  for (uint64_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(start + done));
    if (n < 0 && errno == EINTR) continue;
    ORTMODULE_CHECK(n > 0, kRuntime, "writing to the weights folder '", folder_, "' failed: ", std::strerror(errno));
    done += static_cast<uint64_t>(n);
  }
  size_ = start + bytes.size();
  return mapped_bytes(descriptor_, start, bytes.size());
}

}  // namespace ortmodule

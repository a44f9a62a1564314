#include "onnx/external_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "onnx/mapped_file.h"

namespace ortmodule {
namespace {

std::vector<std::string> components(const std::string& location, const std::string& owner) {
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::kInvalidArgument, "the external data location '", location, "' of ", owner, " is refused: ", why);
  };
  if (location.empty()) refuse("it is empty");
  if (location[0] == '/') refuse("it is an absolute path");
  if (location.find('\0') != std::string::npos || location.find('\\') != std::string::npos)
    refuse("it holds a character that no file name here has");
  std::vector<std::string> parts;
  for (size_t at = 0; at <= location.size();) {
    const size_t slash = std::min(location.find('/', at), location.size());
    const std::string part = location.substr(at, slash - at);
    if (part == "..") refuse("it leaves the model's folder");
    if (!part.empty() && part != ".") parts.push_back(part);
    at = slash + 1;
  }
  if (parts.empty() || location.back() == '/') refuse("it names a folder");
  return parts;
}

}  // namespace

ExternalFiles::~ExternalFiles() {
  for (const auto& [location, file] : files_) ::close(file.descriptor);
}

// Walks from the folder; no component may be a link.
int ExternalFiles::open_beneath(const std::string& location, const std::string& owner) const {
  const std::vector<std::string> parts = components(location, owner);
  int at = ::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ORTMODULE_CHECK_ARG(at >= 0, "the external data folder '", dir_, "' cannot be opened: ", std::strerror(errno));
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    // O_NONBLOCK: a pipe must not block us before we see what it is.
    const int next =
        ::openat(at, parts[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (last ? O_NONBLOCK : O_DIRECTORY));
    const int error = errno;
    ::close(at);
    ORTMODULE_CHECK_ARG(next >= 0, "the external data file '", location, "' of ", owner, " cannot be opened at '",
                        parts[i], "': ",
                        error == ELOOP || error == ENOTDIR
                            ? "symbolic links are refused (SessionOptions.external_data_root follows them)"
                            : std::strerror(error));
    at = next;
  }
  return at;
}

// Follows links, and looks where the file lies that is open then.
int ExternalFiles::open_linked(const std::string& location, const std::string& owner) const {
  components(location, owner);  // of the location itself nothing else is allowed
  char* const real = ::realpath(root_.c_str(), nullptr);
  ORTMODULE_CHECK_ARG(real, "the external data root '", root_, "' cannot be opened: ", std::strerror(errno));
  const std::string root = std::string(real) + (real[1] ? "/" : "");
  std::free(real);
  const int file = ::open((dir_ + "/" + location).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ORTMODULE_CHECK_ARG(file >= 0, "the external data file '", location, "' of ", owner,
                      " cannot be opened: ", std::strerror(errno));
  char place[PATH_MAX];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), place, sizeof(place));
  const bool inside = length > 0 && std::string_view(place, static_cast<size_t>(length)).substr(0, root.size()) == root;
  if (!inside) ::close(file);
  ORTMODULE_CHECK_ARG(inside, "the external data file '", location, "' of ", owner, " is refused: it lies outside of '",
                      root_, "'");
  return file;
}

const ExternalFiles::File& ExternalFiles::open_file(const std::string& location, const std::string& owner) {
  if (auto it = files_.find(location); it != files_.end()) return it->second;
  ORTMODULE_CHECK_ARG(!dir_.empty(), owner, " lies in the external file '", location,
                      "'; give the model's folder to read it");
  const int at = root_.empty() ? open_beneath(location, owner) : open_linked(location, owner);
  struct stat info{};
  const bool known = ::fstat(at, &info) == 0;
  if (!known || !S_ISREG(info.st_mode) || info.st_nlink != 1) {
    ::close(at);
    fail(ErrorCode::kInvalidArgument, "the external data file '", location, "' of ", owner, " is refused: it is ",
         known && S_ISREG(info.st_mode) ? "a file with several hard links" : "no regular file");
  }
  return files_.emplace(location, File{at, static_cast<uint64_t>(info.st_size)}).first->second;
}

void ExternalFiles::fill(const File& file, char* to, uint64_t offset, uint64_t length, const std::string& what) {
  for (uint64_t done = 0; done < length;) {
    const ssize_t n = ::pread(file.descriptor, to + done, length - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    ORTMODULE_CHECK(n > 0, kRuntime, "reading ", what,
                    " failed: ", n < 0 ? std::strerror(errno) : "the file became shorter");
    done += static_cast<uint64_t>(n);
  }
}

SharedBytes ExternalFiles::read(const std::string& location, uint64_t offset, uint64_t length,
                                const std::string& owner) {
  const File& file = open_file(location, owner);
  ORTMODULE_CHECK_GRAPH(offset <= file.size && length <= file.size - offset, owner, " asks for ", length, " bytes at ",
                        offset, " of '", location, "', which has ", file.size, " bytes");
  constexpr uint64_t kMapped = 1 << 20;
  if (length >= kMapped && offset % kTensorAlignment == 0)
    if (SharedBytes mapped = mapped_bytes(file.descriptor, offset, length)) return mapped;
  return SharedBytes::aligned(length,
                              [&](char* to) { fill(file, to, offset, length, "'" + location + "' for " + owner); });
}

namespace {

std::string path_in(const std::string& dir, const std::string& file) {
  const bool plain = !file.empty() && file.find('/') == std::string::npos && file != "." && file != "..";
  ORTMODULE_CHECK_ARG(plain, "the external data file must be a plain file name, got '", file, "'");
  return (dir.empty() ? "." : dir) + "/" + file;
}

}  // namespace

ExternalFileWriter::ExternalFileWriter(const std::string& dir, const std::string& file) : file_(path_in(dir, file)) {}

uint64_t ExternalFileWriter::append(std::string_view bytes) {
  constexpr uint64_t kPage = 4096;
  file_.append(std::string((kPage - file_.size() % kPage) % kPage, '\0'));
  const uint64_t start = file_.size();
  file_.append(bytes);
  return start;
}

}  // namespace ortmodule

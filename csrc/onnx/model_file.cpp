#include "onnx/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/status.h"
#include "onnx/mapped_file.h"

namespace ortmodule {

ModelFile open_model(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ORTMODULE_CHECK_ARG(descriptor >= 0, "the model '", path, "' cannot be read: ", std::strerror(errno));
  struct stat info{};
  const bool regular = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
  SharedBytes bytes = regular ? mapped_bytes(descriptor, 0, static_cast<uint64_t>(info.st_size)) : SharedBytes();
  const int error = errno;
  ::close(descriptor);
  ORTMODULE_CHECK_ARG(regular, "the model '", path, "' cannot be read: it is no regular file");
  ORTMODULE_CHECK_ARG(bytes, "the model '", path, "' cannot be read: ", std::strerror(error));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return {std::move(bytes), folder.empty() ? "." : folder.string()};
}

}  // namespace ortmodule

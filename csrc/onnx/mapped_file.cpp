#include "onnx/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "base/mapped_pages.h"

namespace ortmodule {

SharedBytes mapped_bytes(int descriptor, uint64_t offset, uint64_t length) {
  if (length == 0) return std::string();
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t start = offset / page * page, size = length + (offset - start);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, static_cast<off_t>(start));
  if (memory == MAP_FAILED) return {};
  const std::shared_ptr<const void> owner(memory, [size, noted = note_mapped(memory, size)](const void* gone) mutable {
    noted.reset();
    ::munmap(const_cast<void*>(gone), size);
  });
  return {owner, std::string_view(static_cast<const char*>(memory) + (offset - start), length)};
}

}  // namespace ortmodule

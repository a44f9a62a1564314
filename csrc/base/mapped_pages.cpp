#include "base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace ortmodule {
namespace {

struct Mapped {
  std::mutex mutex;
  std::multimap<uintptr_t, size_t> sizes;  // by where they start
};

Mapped& mapped() {
  static Mapped& all = *new Mapped;  // graphs may outlive static objects
  return all;
}

}  // namespace

std::shared_ptr<const void> note_mapped(const void* start, size_t size) {
  const auto place = reinterpret_cast<uintptr_t>(start);
  const std::lock_guard lock(mapped().mutex);
  const auto entry = mapped().sizes.emplace(place, size);
  return {start, [entry](const void*) {
            const std::lock_guard lock(mapped().mutex);
            mapped().sizes.erase(entry);
          }};
}

void release_pages(const void* start, size_t size) {
  const auto first = reinterpret_cast<uintptr_t>(start), end = first + size;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t from = (first + page - 1) / page * page, to = end / page * page;
  const std::lock_guard lock(mapped().mutex);  // nobody unmaps it meanwhile
  const auto after = mapped().sizes.upper_bound(first);
  if (from >= to || after == mapped().sizes.begin()) return;
  const auto& [place, length] = *std::prev(after);
  if (end <= place + length) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace ortmodule

#include "memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace guarded {
namespace {

constexpr size_t kBytes = size_t{16} << 30;  // of addresses, for each device; pages are taken when they are written
constexpr size_t kGranule = 512;

class DeviceMemory {
 public:
  DeviceMemory() {
    const int file = memfd_create("guarded_device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0, "no memory for the guarded device");
    void* closed = mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* open = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(closed != MAP_FAILED && open != MAP_FAILED, "no addresses for the guarded device");
    close(file);
    base_ = static_cast<char*>(closed);
    open_ = static_cast<char*>(open);
  }

  bool holds(const void* pointer) const { return pointer >= base_ && pointer < base_ + kBytes; }
  void* within_reach(const void* pointer) const { return open_ + (static_cast<const char*>(pointer) - base_); }

  void* take(size_t bytes, WorkQueue& queue) {
    const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
    const std::lock_guard<std::mutex> lock(mutex_);
    take_up_rested();
    auto& free = free_[&queue];
    for (auto it = free.begin(); it != free.end(); ++it) {
      if (it->second < size) continue;
      char* const start = it->first;
      if (it->second > size) free[start + size] = it->second - size;
      free.erase(start);
      taken_.emplace(start, Block{size, bytes, &queue, {}});
      return start;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, fresh_ + size <= kBytes, "the guarded device has no ", bytes, " bytes left");
    char* const start = base_ + fresh_;
    fresh_ += size;
    std::memset(within_reach(start), kPoison, size);  // nobody can be using it yet
    taken_.emplace(start, Block{size, bytes, &queue, {}});
    return start;
  }

  Extent extent(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = taken_.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    if (after == taken_.begin()) return {nullptr, nullptr};
    --after;
    const char* const begin = static_cast<const char*>(within_reach(after->first));
    return {begin, begin + after->second.bytes};
  }

  void record(const void* start, WorkQueue& queue) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(static_cast<char*>(const_cast<void*>(start)));
    if (taken != taken_.end() && taken->second.queue != &queue) taken->second.users.insert(&queue);
  }

  void give_back(void* pointer) {
    char* const start = static_cast<char*>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(start);
    const Block block = std::move(taken->second);
    taken_.erase(taken);
    if (block.users.empty()) return poison_and_free(start, block.size, *block.queue);
    Resting resting{start, block.size, block.queue, {}};
    for (WorkQueue* user : block.users) resting.until.emplace_back(user, user->last());
    resting_.push_back(std::move(resting));
  }

 private:
  struct Block {
    size_t size, bytes;  // taken and asked for
    WorkQueue* queue;
    std::set<WorkQueue*> users;  // beside it
  };
  // Given back, and perhaps in use on other streams: its own does not wait for these, as a GPU's does not.
  struct Resting {
    char* start;
    size_t size;
    WorkQueue* queue;
    std::vector<std::pair<WorkQueue*, uint64_t>> until;
  };
  using Free = std::map<char*, size_t>;

  void poison_and_free(char* start, size_t size, WorkQueue& queue) {
    queue.push([at = within_reach(start), size] { std::memset(at, kPoison, size); });
    add_free(free_[&queue], start, size);
  }

  void take_up_rested() {
    std::erase_if(resting_, [this](const Resting& one) {
      for (const auto& [user, number] : one.until)
        if (!user->done(number)) return false;
      poison_and_free(one.start, one.size, *one.queue);
      return true;
    });
  }

  static void add_free(Free& free, char* start, size_t size) {
    auto it = free.emplace(start, size).first;
    const auto next = std::next(it);
    if (next != free.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free.erase(next);
    }
    if (it == free.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second != it->first) return;
    before->second += it->second;
    free.erase(it);
  }

  char *base_, *open_;
  std::mutex mutex_;
  size_t fresh_ = 0;  // from here on nothing was ever taken
  std::map<char*, Block> taken_;
  std::map<WorkQueue*, Free> free_;
  std::vector<Resting> resting_;
};

// Never destroyed: tensors may outlive every static object.
std::array<DeviceMemory*, kDevices>& memories() {
  static auto* const all = new std::array<DeviceMemory*, kDevices>{new DeviceMemory, new DeviceMemory};
  return *all;
}

void release(void* pointer) {
  if (const c10::DeviceIndex device = device_of(pointer); device >= 0) memories()[device]->give_back(pointer);
}

// On the current stream of the current device.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_device();
    void* pointer = bytes ? memories()[device]->take(bytes, current_queue(device)) : nullptr;
    return {pointer, pointer, &release, c10::Device(kDevice, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    if (!bytes) return;
    current_queue(device_of(to)).push([to = within_reach(to), from = within_reach(from), bytes] {
      std::memcpy(to, from, bytes);
    });
  }
};

DeviceAllocator the_allocator;
REGISTER_ALLOCATOR(kDevice, &the_allocator);

}  // namespace

c10::Allocator& allocator() { return the_allocator; }

c10::DeviceIndex device_of(const void* pointer) {
  for (int device = 0; device < kDevices; ++device)
    if (memories()[device]->holds(pointer)) return static_cast<c10::DeviceIndex>(device);
  return -1;
}

void* within_reach(const void* pointer) {
  const c10::DeviceIndex device = device_of(pointer);
  return device < 0 ? const_cast<void*>(pointer) : memories()[device]->within_reach(pointer);
}

Extent extent_of(const void* pointer) {
  const c10::DeviceIndex device = device_of(pointer);
  return device < 0 ? Extent{nullptr, nullptr} : memories()[device]->extent(pointer);
}

void record_use(const void* block, WorkQueue& queue) {
  if (const c10::DeviceIndex device = device_of(block); device >= 0) memories()[device]->record(block, queue);
}

}  // namespace guarded

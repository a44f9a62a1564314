#include "base/limits.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <utility>

namespace ortmodule {
namespace {

// The number after `key` in a file of lines "key  number ..."; nothing after an empty key: the file's first word.
uint64_t number_in(const char* path, const std::string& key = {}) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t number = 0;
    if (key.empty()) {
      const bool digits = std::all_of(word.begin(), word.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
      return digits && word.size() < 20 ? std::stoull(word) : Limits::kUnlimited;  // "max"
    }
    if (word == key && file >> number) return number;
  }
  return Limits::kUnlimited;
}

uint64_t left(const char* most, const char* used) {
  const uint64_t limit = number_in(most), in_use = number_in(used);
  if (limit == Limits::kUnlimited || in_use == Limits::kUnlimited) return Limits::kUnlimited;
  return limit > in_use ? limit - in_use : 0;
}

std::chrono::steady_clock::duration span_of(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years fit into any clock
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, kLongest)));
}

}  // namespace

uint64_t available_memory() {
  constexpr const char* kSystem = "/proc/meminfo";
  const uint64_t free = number_in(kSystem, "MemAvailable:"), swap = number_in(kSystem, "SwapFree:");
  uint64_t bytes = Limits::kUnlimited;
  if (free != Limits::kUnlimited) bytes = (free + (swap == Limits::kUnlimited ? 0 : swap)) << 10;
  // Inside a container these are its own, where its groups have a namespace.
  bytes = std::min(bytes, left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"));
  return std::min(bytes,
                  left("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"));
}

thread_local std::shared_ptr<Allowance> Allowance::current_;

Allowance::Allowance(const Limits& limits)
    : bytes_(limits.run_bytes),
      seconds_(limits.seconds),
      timed_(limits.seconds > 0),
      end_(timed_ ? Clock::now() + span_of(limits.seconds) : Clock::time_point::max()) {}

void Allowance::take(uint64_t bytes) {
  if (bytes_ == Limits::kUnlimited) return;
  if (bytes_ == Limits::kAvailable) {
    if (bytes < kLargeBlock) return;
    if (const uint64_t free = available_memory(); bytes > free)
      exceed("a value of ", bytes, " bytes is wanted, and ", free, " bytes of memory are free");
    return;
  }
  const uint64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes <= bytes_ && before <= bytes_ - bytes) return;
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  exceed("the run wants ", bytes, " bytes beside the ", before, " that it has, over the limit of ", bytes_,
         " bytes (SessionOptions.max_run_bytes)");
}

void Allowance::out_of_time() const {
  exceed("this takes longer than the limit of ", seconds_, " seconds (SessionOptions.max_seconds)");
}

Allowance::Scope::Scope(std::shared_ptr<Allowance> allowance)
    : before_(std::exchange(current_, std::move(allowance))) {}
Allowance::Scope::~Scope() { current_ = std::move(before_); }

}  // namespace ortmodule

// What tests ask of the guarded device and set on it, for ctypes; and what the simulated GPU needs of it (tests/cuda).
#include <cstring>

#include "copies.h"
#include "counts.h"
#include "memory.h"
#include "streams.h"

#define GUARDED_EXPORT extern "C" __attribute__((visibility("default")))

// Jobs that are queued from now on first sleep that long, each with that probability; below 0: all devices, all
// streams.
GUARDED_EXPORT void guarded_set_delay(int device, int64_t stream, int microseconds, int per_mille) {
  guarded::for_each_queue([&](guarded::WorkQueue& queue) {
    if (device >= 0 && device != queue.device()) return;
    if (stream >= 0 && stream != queue.stream().id()) return;
    queue.set_delay(microseconds, per_mille, /*exactly=*/true);
  });
}

GUARDED_EXPORT void guarded_set_seed(uint64_t seed) {
  guarded::for_each_queue([&](guarded::WorkQueue& queue) { queue.set_seed(seed); });
}

// 0: from the host, 1: to the host, 2: between the two devices.
GUARDED_EXPORT uint64_t guarded_copies(int way) { return guarded::copies(static_cast<guarded::Way>(way)); }

GUARDED_EXPORT void guarded_reset_copies() { guarded::reset_copies(); }

// Waits for all that is queued; what went wrong there, torch's own synchronisation throws.
GUARDED_EXPORT void guarded_synchronize() { guarded::drain(); }

// JSON (counts.h) into `text`, of at most `size` bytes. The bytes that it takes.
GUARDED_EXPORT size_t guarded_counts(char* text, size_t size) {
  const std::string all = guarded::told_counts();
  if (size > all.size()) std::memcpy(text, all.c_str(), all.size() + 1);
  return all.size() + 1;
}

GUARDED_EXPORT void guarded_reset_counts() { guarded::reset_counts(); }

GUARDED_EXPORT uint64_t guarded_jobs() { return guarded::jobs_queued(); }

// Where the device's threads find an address, and the memory around it that was asked for; nulls: not known.
GUARDED_EXPORT void guarded_reach(const void* address, void** at, const void** begin, const void** end) {
  *at = guarded::within_reach(address);
  const guarded::Extent extent = guarded::extent_of(address);
  *begin = extent.begin;
  *end = extent.end;
}

// A job of the stream with this native handle.
GUARDED_EXPORT void guarded_enqueue(void* stream, void (*job)(void*), void* data) {
  static_cast<guarded::WorkQueue*>(stream)->push([job, data] { job(data); });
}

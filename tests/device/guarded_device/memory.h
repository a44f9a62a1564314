// Memory of the guarded device: addresses that the host cannot touch, and blocks whose life follows their stream.
//
// The device's pages are mapped twice. The addresses that tensors have give no access at all, so that a kernel that
// reads or writes device memory from the host ends the process, as it would fail on a GPU; the device's own threads
// use the second mapping, whose addresses nobody else learns. (Opening the first while a job runs would let the host
// at it meanwhile, now that jobs run beside the host.)
//
// A block belongs to the stream that was current when it was taken. Freed, it is filled with 0xFF, which is NaN and
// -1, by a job of that stream, and goes at once to whoever takes memory on the same stream: what that one queues runs
// later. Other streams have to be recorded, as with CUDA's allocator, or they read what the next owner wrote; a block
// with such streams rests until they are done.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "streams.h"

namespace guarded {

constexpr int kPoison = 0xFF;

c10::Allocator& allocator();

// The address at which the device's threads find what tensors have at `pointer`; the host's own is itself.
void* within_reach(const void* pointer);

// The memory that was asked for around `pointer`, as the device's threads find it; nulls where it is not this device's.
struct Extent {
  const void *begin, *end;
};
Extent extent_of(const void* pointer);

// Of the memory at `pointer`; below 0: not this device's.
c10::DeviceIndex device_of(const void* pointer);

// `block`, the start of one, is in use by `queue` too.
void record_use(const void* block, WorkQueue& queue);

}  // namespace guarded

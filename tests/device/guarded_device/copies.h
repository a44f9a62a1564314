// Copies on the guarded device, and how many there were between places.
//
// A copy that blocks waits for the current stream, then copies. One that does not is queued, and holds neither tensor:
// what the host reads of it before it waited is poison, and host memory that it reads is read when it runs, as if the
// memory were pinned. Between the two devices a copy is queued on the destination's stream and waits for nothing,
// which is stricter than CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace guarded {

enum class Way { kToDevice, kToHost, kBetweenDevices };

// Of those that a caller of the device asked for, since the last reset; items that were read are none.
uint64_t copies(Way way);
void reset_copies();

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to);
at::Scalar item(const at::Tensor& x);

}  // namespace guarded

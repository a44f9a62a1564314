// What the host asked of the guarded device: operators by name with the bytes of their tensors, and waits.
//
// An operator of ATen's counts as one launch, which on a GPU most are, and moves what its operands and results have;
// one that picks rows reads what it writes. A wait is what would stop the host on a GPU: values or sizes that it asks
// for, copies that are not asynchronous, and synchronisation. What the device waits for because the host computes for
// it is none. Not here: kernels that are queued past ATen, which count themselves (csrc/cuda/simt/launch.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace guarded {

void count_operator(const c10::OperatorHandle& op, const torch::jit::Stack& operands, const torch::jit::Stack& results);
void count_copy(const at::Tensor& from, const at::Tensor& to);
void count_wait();

// JSON: {"waits": n, "operators": {name: {"launches": n, "bytes": n}}}, since the last reset.
std::string told_counts();
void reset_counts();

}  // namespace guarded

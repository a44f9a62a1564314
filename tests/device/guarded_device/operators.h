// Operators of the guarded device: the CPU's, queued on the stream that is current when they are called.
//
// What results look like is asked of the operator's meta kernel, which reads no values; the results' memory is taken,
// and a job computes into it. Operators whose results' sizes depend on values, that draw random numbers (in the
// program's order), that answer with a number or a view, or that have no meta kernel wait for their stream and are
// computed at once. Not here: those that the CPU has under another name (special_operators.h), copies (copies.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace guarded {

// Every operator that has no kernel of its own.
void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Refuses operands of two devices, and of the host other than numbers and indices; the operands' device, below 0 if
// there is none.
c10::DeviceIndex check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Replaces the operands by the results, which a job computes; or says that it cannot, and leaves the stack.
bool queue_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DeviceIndex device);

}  // namespace guarded

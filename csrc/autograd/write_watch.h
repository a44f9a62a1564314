// Who wants to hear of it before one of torch's operators writes memory: a parameter in place, `.data`, a state dict
// that is loaded, a list of tensors that an optimizer steps.
//
// torch shows each call of an operator to its observers (RecordFunction), with what it was given; which of that it
// writes, its schema says. Collectives' schemas do not: whatever they are given counts as written. Observing costs
// every operator of every thread about a microsecond, so it goes on only while somebody listens. Writes that no
// operator makes (an array of numpy's on a tensor's memory, a library, another process) are not heard of.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

class WriteListener {
 public:
  // Whether a write of this tensor matters. Called for whatever operators are given, on any thread: quick, and without
  // an operator of its own.
  virtual bool concerns(const at::Tensor& tensor) = 0;
  // An operator is about to write it, on this thread. What this runs is not heard of.
  virtual void before_write(const at::Tensor& tensor) = 0;

 protected:
  ~WriteListener() = default;
};

// Listens (or no longer does): one listener for the process, which is never destroyed. Not thread-safe.
void listen_to_writes(WriteListener& listener, bool on);

}  // namespace ortmodule

// What a call was given, kept so that the call can be computed a second time, and whether it still is that.
//
// Somebody may write a weight in a way that counts no version: through `.data`, an array of numpy's, a library. So the
// bytes themselves are summed up at the forward and compared at the second time. Small tensors of which no gradient is
// wanted (token ids, masks) are copied instead: whatever happens to them does not matter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training_agent.h"

namespace ortmodule {

// 64 bits of the bytes; those of two blocks that differ in one word differ. Whole tensors are read at the speed of
// memory, by all of torch's threads.
uint64_t content_sum(const void* data, size_t bytes);

class GivenValues {
 public:
  // Of a program's inputs; none where one cannot be read as bytes (sparse, on a device, a
  // sequence), or lies in memory that processes share.
  static std::optional<GivenValues> take(const TrainingProgram& program, const std::vector<at::Tensor>& inputs);
  // Which input is no longer what it was, in words; nothing: none is.
  std::optional<std::string> change() const;
  // What is summed up rather than copied.
  std::vector<at::Tensor> read() const;
  // The program's inputs once more.
  std::vector<at::Tensor> again() const;

 private:
  struct Value {
    size_t input;
    const void* data;
    uint64_t sum;
  };
  std::vector<Value> watched_;
  // By input: on the memory that it had then, whatever `.data = ` gives the tensor later, and counting its writes with
  // it. What nothing reads is as it was given.
  std::vector<at::Tensor> values_;
  const TrainingProgram* program_ = nullptr;
};

}  // namespace ortmodule

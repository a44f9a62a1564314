// What a kernel sees while it runs. Only *_kernel.cpp files and the runtime include this header: it is the first
// place on the way through the core that knows torch.
//
// A kernel reads its inputs, makes its outputs (through ATen's allocator, on the inputs' device and current stream)
// and hands them over with out(). It runs without the GIL and below autograd: no ATen call in it records history.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/dim.h"
#include "ortmodule/export.h"

namespace ortmodule {

class RunStreams;
class StepWaits;

class KernelContext {
 public:
  // Set by the executor before a step; slots are indices into `frame`, -1 for absent.
  struct StepView {
    const int* inputs;
    size_t input_count;
    const int* outputs;
    size_t output_count;
    const bool* last_use;            // per input: nobody reads this slot after the step
    c10::Device device = c10::kCPU;  // where the step's kernel computes
  };

  // `streams`: where the steps of one run are queued; null where there is but one stream.
  KernelContext(at::Tensor* frame, const SymbolTable* symbols, RunStreams* streams = nullptr)
      : frame_(frame), symbols_(symbols), streams_(streams) {}

  void set_step(const StepView& step) { step_ = step; }
  void set_waits(StepWaits* waits) { waits_ = waits; }

  size_t input_count() const { return step_.input_count; }
  size_t output_count() const { return step_.output_count; }
  bool has(size_t i) const { return i < step_.input_count && step_.inputs[i] >= 0; }
  bool wants(size_t i) const { return i < step_.output_count && step_.outputs[i] >= 0; }
  const at::Tensor& in(size_t i) const { return frame_[step_.inputs[i]]; }
  // The input or an undefined tensor when absent; what ATen's optional arguments are made of.
  at::Tensor in_or_undefined(size_t i) const { return has(i) ? in(i) : at::Tensor(); }
  void out(size_t i, at::Tensor value) const {
    if (wants(i)) frame_[step_.outputs[i]] = std::move(value);
  }
  // True when this step is the input's last use and nobody else has the tensor; others may share its memory.
  bool is_last_reader(size_t i) const { return has(i) && step_.last_use[i] && in(i).use_count() == 1; }
  // True when nobody else holds its memory either: the kernel may write its result into in(i) and hand that over.
  bool may_overwrite(size_t i) const {
    return is_last_reader(i) && in(i).storage().use_count() == 1 && in(i).is_non_overlapping_and_dense();
  }
  // An input that the record declares as one of the host (host_input).
  ORTMODULE_API const at::Tensor& host(size_t i) const;
  // Elements of such an integer input.
  std::vector<int64_t> ints(size_t i) const;
  int64_t int_value(size_t i) const;
  // A 0-d numeric or bool input as a double.
  double double_value(size_t i) const;

  const SymbolTable& symbols() const { return *symbols_; }
  c10::Device device() const { return step_.device; }
  RunStreams* streams() const { return streams_; }
  // Of a kernel that waits itself; null where there is nothing to wait for.
  StepWaits* waits() const { return waits_; }
  const at::Tensor& slot(int number) const { return frame_[number]; }

 private:
  at::Tensor* frame_;
  const SymbolTable* symbols_;
  RunStreams* streams_;
  StepWaits* waits_ = nullptr;
  StepView step_{};
};

}  // namespace ortmodule

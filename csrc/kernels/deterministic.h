// Whether kernels have to give the bits that torch's own give under torch.use_deterministic_algorithms.
#pragma once

namespace ortmodule {

// It is asked for of the process (torch's flag) or of what this thread runs.
bool deterministic_compute();

class DeterministicScope {
 public:
  // false: as it is.
  explicit DeterministicScope(bool on);
  ~DeterministicScope();
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  const bool before_;
};

}  // namespace ortmodule

// What a kernel that waits itself (kWaitsItself) asks while it runs.
#pragma once

#include <c10/core/Event.h>

#include <memory>
#include <vector>

namespace ortmodule {

class StepWaits {
 public:
  // Until the device has given the host what the step reads there.
  virtual void wait_for_inputs() = 0;
  // What that would wait for: when all of these are done the inputs are there, be the run over by then.
  virtual std::vector<std::shared_ptr<const c10::Event>> inputs_events() const = 0;

 protected:
  ~StepWaits() = default;
};

}  // namespace ortmodule

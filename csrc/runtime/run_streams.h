// Where the steps of one run are queued: torch's current streams, streams for transfers, and the events between them.
//
// The plan says what waits for what (Note [Streams] in plan/streams.h); here it is done with c10's streams and events,
// which every device of torch has. A plan of one stream has none of this.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_context.h"
#include "kernels/step_waits.h"
#include "ortmodule/export.h"
#include "plan/execution_plan.h"
#include "records/kernel_registry.h"

namespace ortmodule {

// What copies read that may not have been done when their run ended.
class HeldCopies {
 public:
  static HeldCopies& instance();
  void add(std::vector<c10::Event> behind, std::vector<at::Tensor> tensors);
  // Lets go of what is done.
  void release();

 private:
  struct Held {
    std::vector<c10::Event> behind;
    std::vector<at::Tensor> tensors;
  };
  std::mutex mutex_;
  std::vector<Held> held_;
};

// The streams of a plan that stay the same from run to run.
class StreamTable {
 public:
  explicit StreamTable(const ExecutionPlan& plan);
  size_t size() const { return devices_.size(); }
  c10::Device device(size_t stream) const { return devices_[stream]; }
  // The one that queues now: torch's current one where it computes; none for the host.
  std::optional<c10::Stream> current(size_t stream) const;

 private:
  std::vector<c10::Device> devices_;
  std::vector<std::optional<c10::Stream>> own_;  // for transfers
};

class RunStreams : private StepWaits {
 public:
  // Both outlive it. Streams give what the plan begins with.
  RunStreams(const ExecutionPlan& plan, const StreamTable& table);
  // A run that ended in its midst waits here for all that it has queued: what that reads is freed next.
  ~RunStreams();
  RunStreams(const RunStreams&) = delete;
  RunStreams& operator=(const RunStreams&) = delete;

  // Runs a step's kernel on its stream, between its waits and its notification.
  void run(const Step& step, const Kernel& kernel, KernelContext& context);
  // The waits behind the last step. What copies still read is let go of when they are done, at a later run.
  void finish();

  // For tests: leaves the wait with this number, counted from the plan's first step, out of every later run of plans
  // of this name; a negative number: none.
  ORTMODULE_API static void leave_out(const std::string& plan, int wait);

 private:
  void wait_for_inputs() override;
  std::vector<std::shared_ptr<const c10::Event>> inputs_events() const override;
  void wait(const Wait& wait);
  void notify(int notification, size_t stream);

  const ExecutionPlan& plan_;
  std::vector<std::optional<c10::Stream>> streams_;
  std::vector<std::shared_ptr<c10::Event>> events_;  // by notification
  const Step* waiting_ = nullptr;                    // which has not waited yet
  std::vector<at::Tensor> held_;
  std::vector<char> holds_;  // by stream: whether copies there read what is held
  int left_out_ = -1, waits_ = 0;
  bool finished_ = false;
};

}  // namespace ortmodule

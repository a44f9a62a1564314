// Outputs of a training call that are computed when somebody looks at them.
//
// Note [Late outputs]
// A model returns its loss and, nearly always, scores or hidden states that nobody reads in training. Without them the
// engine need not make the scores whole, and leaves rows out that no loss sees. So a call runs a program that has the
// other outputs alone (the "quick" one), and hands out a late tensor for each output that is left: an ordinary
// at::Tensor with sizes, type and history, whose memory is made when it is asked for (TensorImpl's storage and its data
// pointer are reached through virtual functions). Whatever looks at its elements, in Python, in a kernel or in another
// library, finds them there; what looks at sizes alone computes nothing; dropped unread it has cost nothing.
//
// Then the whole program runs from what the call was given (GivenValues) and with the random state that the quick one
// drew (DrawnState). That is the very same call only while its inputs are what they were. So late tensors that are
// still alive are computed at a backward, before an optimizer's step, and before any operator of torch's writes what
// the call has read (autograd/write_watch.h). For writes of which nobody hears every byte that was read is summed up,
// and compared first: where one differs, looking at the output is an error, and no number. As a second look, the losses
// of both programs are compared.
//
// A gradient that comes to a late output runs the whole program's backward, for all outputs together, as it would have
// been without any of this: the autograd nodes are the whole program's. So does every backward of a call whose outputs
// were computed before it: what a program that always looks gets does not depend on which calls were computed late, to
// the bit. What the quick program has saved is freed then before the whole one runs, so that a call needs no more
// memory than it would have.
//
// Not here: which outputs are late (session/late_choice.h), when all are computed (bindings, before an optimizer's
// step).
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "autograd/given_values.h"
#include "kernels/drawn_state.h"
#include "ortmodule/export.h"
#include "runtime/training_agent.h"

namespace ortmodule {

// Why late outputs were computed.
enum class LateReason { kRead, kBackward, kWrite };

// What became of a session's calls with late outputs.
struct LateCounts {
  std::atomic<int64_t> calls{0}, read{0};
  std::atomic<int64_t> at_backward{0}, at_write{0};  // computed because they were alive
  std::atomic<int64_t> never_read{0};                // of the last two, whose outputs nobody has read
  std::atomic<int64_t> lost{0};                      // could not be computed any more
  std::atomic<int> in_a_row{0};                      // calls whose outputs were computed late, up to now
};

// How a session's program is divided.
struct LatePlan {
  std::shared_ptr<TrainingAgent> quick;
  std::vector<int> quick_outputs;  // per output of the whole program: its place among the quick one's; -1: it is late
  std::vector<int> quick_ys;       // the same for those that a gradient can come to
  LateCounts counts;

  // Calls that compute late what they could have computed at once are slower: after some in a row no output is late.
  static constexpr int kPatience = 3;
  bool is_on() const { return counts.in_a_row < kPatience; }
};

// One call's late outputs.
class LateCall : public std::enable_shared_from_this<LateCall> {
 public:
  using RunState = TrainingAgent::RunState;

  // Null where the call's inputs cannot be kept.
  static std::shared_ptr<LateCall> begin(std::shared_ptr<TrainingAgent> whole, std::shared_ptr<LatePlan> plan,
                                         const std::vector<at::Tensor>& inputs);
  ~LateCall();
  LateCall(const LateCall&) = delete;
  LateCall& operator=(const LateCall&) = delete;

  // Runs the quick program. Outputs of the whole one in its order; late tensors where they are late.
  std::vector<at::Tensor> run_quick(std::vector<at::Tensor>&& inputs, const std::vector<size_t>* unchecked);
  // Gives the late tensors that are alive their elements. Throws kRuntime where these are gone; `quiet`: then it is the
  // next one who looks to whom that is said.
  void settle(LateReason why, bool quiet = false);
  // What the quick program's backward runs on: from now on the call has one. Null where its outputs were computed
  // before the first backward.
  std::shared_ptr<RunState> begin_quick();
  // What the whole program's backward runs on: of the run that has computed the outputs, or of one more. Throws as
  // settle() does.
  std::shared_ptr<RunState> whole_state();
  // Whether a late tensor is alive that has no elements yet.
  bool waits();
  // No gradient can come any more: what is given is held for late tensors alone.
  void end_gradients();
  // A late tensor is destroyed; without one nothing needs to be heard of.
  void drop_one();
  // Whether the call may yet read this memory a second time. Quick, on any thread.
  bool reads(const c10::StorageImpl* memory) const;

  LatePlan& plan() { return *plan_; }

 private:
  using Held = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Late {
    size_t output;
    Weak tensor;
  };

  LateCall(std::shared_ptr<TrainingAgent> whole, std::shared_ptr<LatePlan> plan, GivenValues given);
  // `held`: the tensors that have got their elements.
  void settle_locked(LateReason why, std::vector<Held>& held);
  std::vector<at::Tensor> run_whole(std::shared_ptr<RunState>* state);
  void check_given();
  // Writes are listened to while a late tensor is alive that has no elements.
  void listen(bool on);
  void compare_losses(const std::vector<at::Tensor>& outputs) const;

  const std::shared_ptr<TrainingAgent> whole_;
  const std::shared_ptr<LatePlan> plan_;
  const at::ThreadLocalState modes_;             // what was in force around the call
  std::vector<const c10::StorageImpl*> memory_;  // that it reads, in order
  std::atomic<bool> listens_{false};
  std::atomic<size_t> alive_{0};      // late tensors
  std::mutex mutex_;                  // of what follows
  std::optional<GivenValues> given_;  // none: nothing is computed from it any more
  DrawnState::Words drawn_;
  std::vector<std::pair<size_t, at::Tensor>> losses_;  // of the quick program: output, its value
  std::vector<Late> late_;
  std::shared_ptr<RunState> quick_state_, whole_state_;  // for a backward
  bool settled_ = false, quick_begun_ = false, gradients_ended_ = false;
  std::string lost_;  // why there is nothing to be computed
};

// Computes the late outputs of all calls that are alive; before what they are computed from changes.
ORTMODULE_API void settle_all_late();
// The same for those that read one of these tensors' memory, which somebody is about to write past torch's operators.
void settle_before_write(const std::vector<at::Tensor>& tensors);
// `run(work)` calls work() without what other threads may need in the meantime (Python's lock).
ORTMODULE_API void set_late_runner(void (*run)(const std::function<void()>& work));

}  // namespace ortmodule

// Records what is given to a half of a run and what its nodes make: figures and fingerprints, no tensors.
//
// What is recorded of a plan is chosen once; from then on a half costs reading the chosen values. Not here: files
// (ortmodule/debug).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ortmodule/export.h"
#include "runtime/run_observer.h"
#include "runtime/value_statistics.h"

namespace ortmodule {

struct RecordedValue {
  enum class Kind {
    kInput,  // a graph input; in backward, where `name` is an output's, the gradient that comes to it
    kConstant,
    kMade,            // by a node
    kInputsGradient,  // by a node, and `name` is the graph input that it is the gradient of
  } kind;
  std::string name, node, op;  // of what no node makes the latter are empty
};

class RunRecorder : public RunObserver {
 public:
  // Of a half's values, in the order in which they come: which to record, and the layout's number. Asked once per plan,
  // at least.
  using Choose = std::function<std::pair<size_t, std::vector<char>>(const std::string& half,
                                                                    const std::vector<RecordedValue>& values)>;
  struct Half {
    size_t layout;
    int64_t run;  // a forward's number among those that began since the recorder was made; -1: a backward
    std::vector<ValueStatistics> values;  // those that were chosen, as far as the half has come
    bool whole = false;                   // to its end
  };
  using Write = std::function<void(const Half& half)>;

  // Whether later halves are recorded; they are at first.
  void enable(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> on_ = true;
};

// `figures` as in statistics_of; of the forwards every so many-th is recorded, from the first on.
ORTMODULE_API std::shared_ptr<RunRecorder> make_recorder(RunRecorder::Choose choose, RunRecorder::Write write,
                                                         bool figures, int64_t every = 1);

}  // namespace ortmodule

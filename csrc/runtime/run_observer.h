// Who looks at the values of runs: dumps, recordings. The one way to see what a node has made.
//
// Whoever wants to look is asked at the beginning of each half of a run (forward, backward) and answers with what is
// told of that half's steps, or with nothing. A session without observers pays one look at an empty list per half.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor.h"

namespace ortmodule {

// A half as it begins. What it is given lies in its slots already; a slot of -1 is read by no step.
struct ObservedHalf {
  const ExecutionPlan& plan;
  const std::vector<int>& given;                // graph inputs; in backward the outputs' gradients
  const std::vector<std::string>& given_names;  // of the inputs; in backward of the outputs
  const std::vector<std::string>& wanted;       // in backward the inputs whose gradients are the plan's outputs
};

// Looks at one half, on the threads that run it, one after another. It goes without finish() where the half did not
// come to its end.
class HalfObserver {
 public:
  virtual ~HalfObserver() = default;
  // After the step's kernel. An input may have been overwritten or given up (undefined) by then, and outputs may be
  // overwritten later: what is to be kept is copied. Graph inputs and constants are as they were.
  virtual void step(const Step& step, const Frame& frame) = 0;
  virtual void finish() {}
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  // Null: this half is of no interest. May be asked from several threads.
  virtual std::unique_ptr<HalfObserver> begin(const ObservedHalf& half, const Frame& frame) = 0;
};

// All that look at one half.
class HalfObservers {
 public:
  void add(std::unique_ptr<HalfObserver> one) {
    if (one) all_.push_back(std::move(one));
  }
  bool empty() const { return all_.empty(); }
  void step(const Step& step, const Frame& frame) const {
    for (const auto& one : all_) one->step(step, frame);
  }
  void finish() {
    for (const auto& one : all_) one->finish();
    all_.clear();
  }

 private:
  std::vector<std::unique_ptr<HalfObserver>> all_;
};

// Those of a session, for all its agents.
class RunObservers {
 public:
  void add(std::shared_ptr<RunObserver> observer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(std::move(observer));
  }
  void remove(const RunObserver* observer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(all_, [observer](const auto& one) { return one.get() == observer; });
  }
  bool any() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !all_.empty();
  }
  HalfObservers begin(const ObservedHalf& half, const Frame& frame) const {
    HalfObservers found;
    std::vector<std::shared_ptr<RunObserver>> asked;  // without the lock, for they may wait for Python
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked = all_;
    }
    for (const auto& one : asked) found.add(one->begin(half, frame));
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<RunObserver>> all_;
};

}  // namespace ortmodule

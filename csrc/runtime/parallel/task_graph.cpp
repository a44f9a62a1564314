#include "runtime/parallel/task_graph.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <queue>
#include <utility>

#include "base/status.h"

namespace ortmodule {
namespace {

// How soon a caller who is asked to stop looks, while all threads of the pool are at work for others.
constexpr std::chrono::milliseconds kLook{5};

}  // namespace

TaskGraph::TaskGraph(const std::vector<std::vector<uint32_t>>& before, std::vector<char> light)
    : behind_(before.size()), light_(std::move(light)) {
  ORTMODULE_INTERNAL(light_.size() == before.size(), before.size(), " tasks, ", light_.size(), " weights");
  std::vector<size_t> level(before.size(), 0), wide(before.size() + 1, 0);
  for (size_t i = 0; i < before.size(); ++i) {
    waits_.push_back(static_cast<uint32_t>(before[i].size()));
    for (uint32_t earlier : before[i]) {
      ORTMODULE_INTERNAL(earlier < i, "task ", i, " waits for task ", earlier);
      behind_[earlier].push_back(static_cast<uint32_t>(i));
      level[i] = std::max(level[i], level[earlier] + !light_[earlier]);
    }
    if (!light_[i]) width_ = std::max(width_, ++wide[level[i]]);
  }
}

// One run. Helpers that are scheduled hold it: the last may come when the caller has left.
class TaskRun : public std::enable_shared_from_this<TaskRun> {
 public:
  TaskRun(const TaskGraph& graph, InterOpPool& pool, const RunStop* stop, const std::function<void(TaskSource&)>& work)
      : graph_(graph), pool_(pool), stop_(stop), work_(work), left_(graph.size()), waits_(graph.waits_) {
    for (uint32_t i = 0; i < waits_.size(); ++i)
      if (waits_[i] == 0) add(i);
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (left_ > 0) call_helpers(lock, 1);
    while (!has_ended()) {
      if (stop_)
        ended_.wait_for(lock, kLook);
      else
        ended_.wait(lock);
      look_at_stop();
    }
    over_ = true;  // helpers that come now find nothing
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  // What a helper does next.
  std::optional<uint32_t> next(TaskSource& helper) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (helper.current_) finish(helper);
    look_at_stop();
    helper.current_ = over_ ? std::nullopt : take(helper);
    if (helper.current_)
      call_helpers(lock, 0);
    else
      --helpers_;
    return helper.current_;
  }

 private:
  bool has_ended() const { return busy_ == 0 && (left_ == 0 || over_); }

  void add(uint32_t task) {
    if (graph_.light_[task])
      light_.push_back(task);
    else
      heavy_.push(task);
  }

  // Counts down; the first task that is ready now, and not light, stays with the helper.
  void finish(TaskSource& helper) {
    --left_;
    for (uint32_t later : graph_.behind_[*helper.current_]) {
      if (--waits_[later] > 0) continue;
      if (!graph_.light_[later] && !helper.kept_)
        helper.kept_ = later;
      else
        add(later);
    }
  }

  std::optional<uint32_t> take(TaskSource& helper) {
    std::optional<uint32_t> task;
    if (!light_.empty()) {
      task = light_.back();
      light_.pop_back();
    } else if (helper.kept_) {
      task = std::exchange(helper.kept_, std::nullopt);
    } else if (!heavy_.empty()) {
      task = heavy_.top();
      heavy_.pop();
    }
    return task;
  }

  // Has threads come for what is ready; the lock is given up meanwhile.
  void call_helpers(std::unique_lock<std::mutex>& lock, size_t at_least) {
    const size_t wanted = std::max(heavy_.size(), at_least);
    const size_t more = std::min(wanted, pool_.size() - std::min(helpers_, pool_.size()));
    if (more == 0) return;
    helpers_ += more;
    lock.unlock();
    for (size_t i = 0; i < more; ++i) pool_.schedule([self = shared_from_this()] { self->help(); });
    lock.lock();
  }

  void help() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (over_ || (light_.empty() && heavy_.empty())) {
        --helpers_;
        return;
      }
      ++busy_;
    }
    std::exception_ptr error;
    try {
      TaskSource source(*this);
      work_(source);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error) {
      --helpers_;
      if (!over_) error_ = std::move(error);
      over_ = true;
    }
    --busy_;
    if (has_ended()) ended_.notify_all();
  }

  void look_at_stop() {
    if (!stop_ || over_ || left_ == 0 || !stop_->asked()) return;
    over_ = true;
    try {
      stop_->check();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const TaskGraph& graph_;
  InterOpPool& pool_;
  const RunStop* const stop_;
  const std::function<void(TaskSource&)>& work_;
  std::mutex mutex_;  // of all below
  std::condition_variable ended_;
  size_t left_;
  std::vector<uint32_t> waits_;
  std::vector<uint32_t> light_;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> heavy_;
  size_t helpers_ = 0, busy_ = 0;  // scheduled or at work; at work
  bool over_ = false;              // nothing more begins
  std::exception_ptr error_;       // the first
};

std::optional<size_t> TaskSource::next() { return run_.next(*this); }

void run_tasks(const TaskGraph& graph, InterOpPool& pool, const RunStop* stop,
               const std::function<void(TaskSource&)>& work) {
  ORTMODULE_INTERNAL(!InterOpPool::on_worker(), "a thread of a pool waits for tasks");
  std::make_shared<TaskRun>(graph, pool, stop, work)->run();
}

}  // namespace ortmodule

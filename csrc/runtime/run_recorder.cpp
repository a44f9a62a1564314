#include "runtime/run_recorder.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/accumulate.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/aten_bridge.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// A value that is recorded.
struct Chosen {
  int slot;
  int shows = -1;  // the place among the recorded ones of a value that it may be a view of
};

// What of a plan is recorded, in the order in which it comes.
struct Layout {
  size_t number = 0;
  std::vector<Chosen> given;
  std::vector<std::vector<Chosen>> steps;  // outputs
  size_t size = 0;
};

struct Place {
  long step;  // -1: before the first
  int slot;
  int shows = -1;  // slot of a value that this may be a view of
};

// Every value of a half, and where it is found.
std::pair<std::vector<RecordedValue>, std::vector<Place>> values_of(const ObservedHalf& half) {
  using Kind = RecordedValue::Kind;
  std::vector<RecordedValue> values;
  std::vector<Place> places;
  for (size_t i = 0; i < half.given.size(); ++i) {
    if (half.given[i] < 0) continue;
    values.push_back({Kind::kInput, half.given_names[i], "", ""});
    places.push_back({-1, half.given[i]});
  }
  for (const auto& [slot, constant] : half.plan.constants) {
    values.push_back({Kind::kConstant, constant->name(), "", ""});
    places.push_back({-1, slot});
  }
  std::unordered_map<int, size_t> gradient;  // slot -> place among the wanted
  for (size_t k = 0; k < half.wanted.size() && k < half.plan.output_slots.size(); ++k)
    gradient.emplace(half.plan.output_slots[k], k);
  for (size_t s = 0; s < half.plan.steps.size(); ++s) {
    const Step& step = half.plan.steps[s];
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      const int slot = step.outputs[i];
      if (slot < 0) continue;
      const auto found = gradient.find(slot);
      const bool is_gradient = found != gradient.end();
      values.push_back({is_gradient ? Kind::kInputsGradient : Kind::kMade,
                        is_gradient ? half.wanted[found->second] : step.node->output(i)->name(), step.node->name(),
                        step.node->qualified_op()});
      const bool view = i == 0 && step.node->record() && step.node->record()->has(kView) && !step.inputs.empty();
      places.push_back({static_cast<long>(s), slot, view ? step.inputs[0] : -1});
    }
  }
  return {std::move(values), std::move(places)};
}

class Recording : public HalfObserver {
 public:
  Recording(std::shared_ptr<const Layout> layout, const ExecutionPlan& plan, const Frame& frame, int64_t run,
            const RunRecorder::Write& write, bool figures)
      : layout_(std::move(layout)), first_(plan.steps.data()), write_(write), figures_(figures) {
    recorded_.layout = layout_->number;
    recorded_.run = run;
    recorded_.values.reserve(layout_->size);
    elements_.reserve(layout_->size);
    for (const Chosen& one : layout_->given) note(frame, one);
  }
  ~Recording() override {
    if (recorded_.whole) return;
    try {
      write_(recorded_);
    } catch (...) {  // what ended the half is what its caller hears of
    }
  }

  void step(const Step& step, const Frame& frame) override {
    for (const Chosen& one : layout_->steps[&step - first_]) note(frame, one);
  }
  void finish() override {
    recorded_.whole = true;
    write_(recorded_);
  }

 private:
  // Where a value's elements lie in their order; null: in no one place.
  static const void* elements_of(const at::Tensor& t) {
    const bool plain = t.defined() && t.has_storage() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
    return plain ? t.const_data_ptr() : nullptr;
  }

  void note(const Frame& frame, const Chosen& one) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& t = frame.slots[one.slot];
    std::vector<ValueStatistics>& values = recorded_.values;
    elements_.push_back(elements_of(t));
    // A view of a whole value is not read again: nobody has written the value, for the view was to be made of it.
    if (one.shows >= 0 && elements_.back() && elements_.back() == elements_[one.shows] &&
        values[one.shows].dtype == to_dtype(t.scalar_type()) &&
        c10::multiply_integers(values[one.shows].shape) == t.numel()) {
      values.push_back(values[one.shows]);
      values.back().shape = t.sizes().vec();
      return;
    }
    values.push_back(statistics_of(t, figures_));
  }

  const std::shared_ptr<const Layout> layout_;
  const Step* const first_;
  const RunRecorder::Write write_;
  const bool figures_;
  RunRecorder::Half recorded_;
  std::vector<const void*> elements_;  // of each recorded value
};

class Recorder : public RunRecorder {
 public:
  Recorder(Choose choose, Write write, bool figures, int64_t every)
      : choose_(std::move(choose)), write_(std::move(write)), figures_(figures), every_(every) {}

  std::unique_ptr<HalfObserver> begin(const ObservedHalf& half, const Frame& frame) override {
    const bool forward = half.plan.name == "forward";
    const int64_t run = forward ? runs_.fetch_add(1, std::memory_order_relaxed) : -1;
    if (!on() || (forward && run % every_)) return nullptr;
    std::shared_ptr<const Layout> layout = layout_of(half);
    if (!layout->size) return nullptr;
    return std::make_unique<Recording>(std::move(layout), half.plan, frame, run, write_, figures_);
  }

 private:
  std::shared_ptr<const Layout> layout_of(const ObservedHalf& half) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto known = layouts_.find(&half.plan); known != layouts_.end()) return known->second;
    }
    auto layout = std::make_shared<Layout>();  // without the lock: choose_ may wait for Python
    const auto [values, places] = values_of(half);
    const auto [number, chosen] = choose_(half.plan.name, values);
    layout->number = number;
    layout->steps.resize(half.plan.steps.size());
    std::unordered_map<int, int> recorded;  // slot -> its place
    for (size_t i = 0; i < places.size() && i < chosen.size(); ++i) {
      if (!chosen[i]) continue;
      const auto shown = recorded.find(places[i].shows);
      recorded.emplace(places[i].slot, static_cast<int>(layout->size++));
      (places[i].step < 0 ? layout->given : layout->steps[places[i].step])
          .push_back({places[i].slot, shown == recorded.end() ? -1 : shown->second});
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    return layouts_.emplace(&half.plan, std::move(layout)).first->second;
  }

  const Choose choose_;
  const Write write_;
  const bool figures_;
  const int64_t every_;
  std::atomic<int64_t> runs_ = 0;
  std::mutex mutex_;
  std::map<const ExecutionPlan*, std::shared_ptr<const Layout>> layouts_;  // a recorder lives with its session
};

}  // namespace

std::shared_ptr<RunRecorder> make_recorder(RunRecorder::Choose choose, RunRecorder::Write write, bool figures,
                                           int64_t every) {
  return std::make_shared<Recorder>(std::move(choose), std::move(write), figures, every);
}

}  // namespace ortmodule

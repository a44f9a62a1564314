#include "plan/streams.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "graph/subgraph.h"
#include "placement/partition.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

using Role = LogicStream::Role;

class Streams {
 public:
  Streams(ExecutionPlan& plan, const StreamRequest& request) : plan_(plan), request_(request) {}

  void run() {
    plan_.streams.push_back({kHost});
    clocks_.emplace_back();
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Step& step = plan_.steps[i];
      step.stream = stream_of(*step.node);
      step.waits_itself = step.node->record()->has(kWaitsItself);
      if (is_transfer(*step.node)) step.kind = Step::Kind::kTransfer;
      std::vector<size_t> read_inputs;
      for (size_t k = 0; k < step.inputs.size(); ++k)
        if (const NodeArg* value = step.node->input(k); value && !value->constant() && reads_elements(*step.node, k))
          read_inputs.push_back(k);
      // The last one made first: to wait for it may be enough for the others.
      std::sort(read_inputs.begin(), read_inputs.end(), [&](size_t x, size_t y) {
        return std::pair(maker(*step.node->input(x)).step, y) > std::pair(maker(*step.node->input(y)).step, x);
      });
      for (size_t k : read_inputs) read(step, *step.node->input(k), step.inputs[k]);
      if (is_transfer(*step.node)) copied_.emplace_back(step.node->input(0), Point{step.stream, static_cast<long>(i)});
      passed_.push_back(clocks_[step.stream]);
      passed_.back()[step.stream] = static_cast<long>(i);
      for (const auto& [s, done] : clocks_[0]) raise(passed_.back(), s, done);
      for (const NodeArg* out : step.node->outputs())
        if (out) makers_[out] = {step.stream, static_cast<long>(i)};
    }
    finish();
  }

 private:
  // A place in a stream: behind step `step`, or before the first one (-1).
  struct Point {
    size_t stream;
    long step;
  };
  using Clock = std::map<size_t, long>;  // by stream: the last step that is known to be done

  static bool is_transfer(const Node& node) { return node.record()->has(kTransfer); }

  size_t stream(const std::string& device, Role role = Role::kCompute) {
    for (size_t s = 0; s < plan_.streams.size(); ++s)
      if (plan_.streams[s].device == device && plan_.streams[s].role == role) return s;
    plan_.streams.push_back({device, role});
    clocks_.emplace_back();
    return plan_.streams.size() - 1;
  }

  static bool is_of_host(const NodeArg& value) { return value.location() == kHost; }

  size_t stream_of(const Node& node) {
    const bool from_host = is_transfer(node) && is_of_host(*node.input(0));
    return stream(node.device(), from_host ? Role::kTransfer : Role::kCompute);
  }

  // What gives numbers of the host asks what it reads otherwise for sizes alone.
  static bool reads_elements(const Node& node, size_t input) {
    const FormalInput* formal = node.record()->formal_input(input);
    return !node.record()->has(kHostOutput) || (formal && formal->host);
  }

  // Where a value was made; before the plan, on the stream that computes where it lies.
  Point maker(const NodeArg& value) {
    const auto made = makers_.find(&value);
    return made == makers_.end() ? Point{stream(value.location()), -1} : made->second;
  }

  void read(Step& step, const NodeArg& value, int slot) {
    const Point made = maker(value);
    if (made.step < 0 && request_.settled.count(value.name())) return lend(step, value, slot, made);
    const bool host_value = is_of_host(value);
    // The steps of a body run on the streams of what they read.
    if (has_body(*step.node)) wait(step, host_value ? 0 : stream(value.location()), made);
    wait(step, host_value ? 0 : step.stream, made);
    lend(step, value, slot, made);
  }

  // What another stream made, and where it is read.
  void lend(Step& step, const NodeArg& value, int slot, const Point& made) {
    if (step.stream == made.stream) return;
    if (!is_of_host(value) && step.stream != 0) step.foreign.push_back(slot);
    if (is_transfer(*step.node)) step.held.push_back(slot);
    if (made.stream == 0 && made.step >= 0) plan_.steps[static_cast<size_t>(made.step)].triggers = true;
  }

  // Has `reader` wait for a point of another stream, unless that is known to be done.
  void wait(std::vector<Wait>& waits, size_t reader, const Point& point) {
    if (const auto notification = needed(waits, reader, point))
      for (const auto& [s, done] : told_[static_cast<size_t>(*notification)]) raise(clocks_[reader], s, done);
  }

  // Nothing is known to be done behind a step that may not wait.
  void wait(Step& step, size_t reader, const Point& point) {
    if (step.waits_itself)
      needed(step.waits, reader, point);
    else
      wait(step.waits, reader, point);
  }

  std::optional<int> needed(std::vector<Wait>& waits, size_t reader, const Point& point) {
    if (reader == point.stream || point.stream == 0 || knows(reader, point)) return {};
    waits.push_back({notify(point), reader});
    return waits.back().notification;
  }

  static void raise(Clock& clock, size_t stream, long done) {
    const auto known = clock.emplace(stream, done).first;
    known->second = std::max(known->second, done);
  }

  // What the host has waited for is done before anything that it issues later.
  bool knows(size_t reader, const Point& point) const {
    for (const size_t who : {reader, size_t{0}})
      if (const auto known = clocks_[who].find(point.stream);
          known != clocks_[who].end() && known->second >= point.step)
        return true;
    return false;
  }

  int notify(const Point& point) {
    const auto add = [&](Clock told) {
      told_.push_back(std::move(told));
      return plan_.notifications++;
    };
    if (point.step < 0) {
      for (const auto& [notification, s] : plan_.begins)
        if (s == point.stream) return notification;
      plan_.begins.emplace_back(add({{point.stream, -1}}), point.stream);
      return plan_.begins.back().first;
    }
    Step& step = plan_.steps[static_cast<size_t>(point.step)];
    if (step.notifies < 0) step.notifies = add(passed_[static_cast<size_t>(point.step)]);
    return step.notifies;
  }

  void finish() {
    std::vector<std::pair<long, const NodeArg*>> leaving;  // the last one made first, as above
    for (const auto& [value, point] : makers_)
      if (request_.leaves[value->id()]) leaving.emplace_back(-point.step, value);
    std::sort(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second->id()) < std::pair(b.first, b.second->id());
    });
    const auto home = [&](const NodeArg& value) { return is_of_host(value) ? 0 : stream(value.location()); };
    for (const auto& [step, value] : leaving) {
      const Point& made = makers_.at(value);
      if (made.stream != home(*value) && !knows(home(*value), made)) plan_.late.insert(value->name());
    }
    for (const auto& [step, value] : leaving) wait(plan_.ends, home(*value), makers_.at(value));
    // Whoever has what was copied may write it when the run has ended.
    for (auto copy = copied_.rbegin(); copy != copied_.rend(); ++copy) {
      const NodeArg& value = *copy->first;
      if (value.is_graph_input() || value.is_graph_output()) wait(plan_.ends, home(value), copy->second);
    }
    for (const auto& [step, value] : leaving)
      if (knows(0, makers_.at(value))) plan_.settled.insert(value->name());
  }

  ExecutionPlan& plan_;
  const StreamRequest& request_;
  std::unordered_map<const NodeArg*, Point> makers_;
  std::vector<Clock> clocks_;                             // by stream
  std::vector<Clock> passed_;                             // by step: what was done when it is
  std::vector<Clock> told_;                               // by notification
  std::vector<std::pair<const NodeArg*, Point>> copied_;  // in order
};

void assign_communication(ExecutionPlan& plan) {
  std::unordered_map<const NodeArg*, int> notified;
  std::optional<size_t> communication;
  for (Step& step : plan.steps) {
    if (!step.node->record()->has(kCollective)) continue;
    if (step.node->get_int("async", 0)) {
      if (!communication) {
        communication = plan.streams.size();
        plan.streams.push_back({"communication", Role::kCommunication});
      }
      step.stream = *communication;
      step.notifies = plan.notifications++;
      notified[step.node->output(0)] = step.notifies;
    } else if (const auto started = notified.find(step.node->input(0)); started != notified.end()) {
      step.kind = Step::Kind::kWaitOnEP;
      step.waits.push_back({started->second, step.stream});
    }
  }
}

}  // namespace

bool is_host(const LogicStream& stream) { return stream.device == kHost; }

void assign_streams(ExecutionPlan& plan, const StreamRequest& request) {
  plan.placed = !plan.steps.empty() && !plan.steps[0].node->provider().empty();
  if (plan.placed)
    Streams(plan, request).run();
  else
    plan.streams.push_back({request.device_type});
  assign_communication(plan);
}

}  // namespace ortmodule

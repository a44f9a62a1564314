#include "bindings/observing.h"

#include <string>
#include <utility>
#include <vector>

#include "bindings/held_object.h"
#include "bindings/values.h"
#include "runtime/run_recorder.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace ortmodule {
namespace {

// Note [Observed runs]
// callback(phase, node, operator, inputs, outputs), the latter two lists of (name, value), as HalfObserver::step has
// it: what is given up is None. A half is recorded without Python: it is asked once what to record of a plan, and told
// once per half what that was.
class CallbackOfHalf : public HalfObserver {
 public:
  explicit CallbackOfHalf(std::shared_ptr<py::object> callback) : callback_(std::move(callback)) {}

  void step(const Step& step, const Frame& frame) override {
    const py::gil_scoped_acquire gil;
    py::list inputs, outputs;
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (step.inputs[i] >= 0)
        inputs.append(py::make_tuple(step.node->input(i)->name(), write_value(frame.slots[step.inputs[i]])));
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      if (step.outputs[i] < 0) continue;
      const at::Tensor& value = frame.slots[step.outputs[i]];
      outputs.append(py::make_tuple(step.node->output(i)->name(), write_value(value)));
    }
    const char* phase = step.node->phase() == Phase::kForward ? "forward" : "backward";
    (*callback_)(phase, step.node->name(), step.node->qualified_op(), inputs, outputs);
  }

 private:
  const std::shared_ptr<py::object> callback_;
};

class Callback : public RunObserver {
 public:
  Callback(const py::object& callback, const py::object& begin)
      : callback_(held_object(callback)), begin_(begin.is_none() ? nullptr : held_object(begin)) {}
  std::unique_ptr<HalfObserver> begin(const ObservedHalf& half, const Frame&) override {
    if (begin_) {
      const py::gil_scoped_acquire gil;
      if (!(*begin_)(half.plan.name).cast<bool>()) return nullptr;
    }
    return std::make_unique<CallbackOfHalf>(callback_);
  }

 private:
  const std::shared_ptr<py::object> callback_, begin_;
};

// What Python holds of an observer: it ends it, and a recorder can be told to pause. The session alone keeps it alive.
struct Observation {
  std::weak_ptr<const Session> session;
  std::weak_ptr<RunObserver> observer;
  std::weak_ptr<RunRecorder> recorder;  // of another observer there is none

  void end() const {
    const std::shared_ptr<const Session> there = session.lock();
    const std::shared_ptr<RunObserver> one = observer.lock();
    if (there && one) there->stop_observing(one.get());
  }
  void enable(bool on) const {
    if (const std::shared_ptr<RunRecorder> one = recorder.lock()) one->enable(on);
  }
};

Observation observe(const std::shared_ptr<Session>& session, const py::object& callback, const py::object& begin) {
  const auto observer = std::make_shared<Callback>(callback, begin);
  session->observe(observer);
  return {session, observer, {}};
}

const char* kind_of(const RecordedValue& value, bool forward) {
  switch (value.kind) {
    case RecordedValue::Kind::kInput:
      return forward ? "input" : "gradient of output";
    case RecordedValue::Kind::kConstant:
      return "constant";
    case RecordedValue::Kind::kInputsGradient:
      return "gradient";
    default:
      return "node";
  }
}

// What of a value seldom changes from run to run; its sizes follow it.
struct Form {
  int32_t dtype, rank;
  int64_t finite, nans, infinities;
};
static_assert(sizeof(Form) == 32);

bool needs_doubles(DType dtype) {
  switch (dtype) {
    case DType::kDouble:
    case DType::kComplex128:
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kInt64:
    case DType::kUInt64:
      return true;
    default:
      return false;
  }
}

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// (numbers, forms) as ortmodule/debug/statistics.py reads them. Numbers: every value's fingerprint, then, if there are
// figures, four of each: in float where they are as good as the elements.
std::pair<py::bytes, py::bytes> packed(const std::vector<ValueStatistics>& values, bool figures) {
  std::string numbers, forms;
  numbers.reserve(values.size() * (figures ? 40 : 8));
  forms.reserve(values.size() * 64);
  for (const ValueStatistics& v : values) append(numbers, v.fingerprint);
  for (const ValueStatistics& v : values) {
    const bool doubles = needs_doubles(v.dtype);
    for (const double figure : {v.min, v.max, v.mean, v.deviation}) {
      if (!figures) break;
      if (doubles)
        append(numbers, figure);
      else
        append(numbers, static_cast<float>(figure));
    }
    append(forms,
           Form{static_cast<int32_t>(v.dtype), static_cast<int32_t>(v.shape.size()), v.finite, v.nans, v.infinities});
    for (const int64_t size : v.shape) append(forms, size);
  }
  return {py::bytes(numbers), py::bytes(forms)};
}

Observation record(const std::shared_ptr<Session>& session, const py::object& choose, const py::object& write,
                   bool figures, int64_t every) {
  const auto chooser = [held = held_object(choose)](const std::string& half, const std::vector<RecordedValue>& values) {
    const py::gil_scoped_acquire gil;
    py::list rows;
    for (const RecordedValue& value : values)
      rows.append(py::make_tuple(kind_of(value, half == "forward"), value.name, value.node, value.op));
    const auto [number, chosen] = (*held)(half, rows).cast<std::pair<size_t, std::vector<int>>>();
    return std::pair(number, std::vector<char>(chosen.begin(), chosen.end()));
  };
  const auto writer = [held = held_object(write), figures](const RunRecorder::Half& half) {
    const py::gil_scoped_acquire gil;
    const auto [numbers, forms] = packed(half.values, figures);
    (*held)(half.layout, half.run, numbers, forms, half.whole);
  };
  const std::shared_ptr<RunRecorder> recorder = make_recorder(chooser, writer, figures, every);
  session->observe(recorder);
  return {session, recorder, recorder};
}

}  // namespace

void register_observing(py::module_& m, py::class_<Session, std::shared_ptr<Session>>& session) {
  py::class_<Observation>(m, "Observation", "Who looks at the runs of a session.")
      .def("end", &Observation::end, "The next half of a run is not looked at.")
      .def("enable", &Observation::enable, py::arg("on"), "Whether later halves are recorded.");
  session
      .def("observe", &observe, py::arg("callback"), py::arg("begin") = py::none(),
           "callback(phase, node, operator, inputs, outputs) after every step of every later run; begin(half) says "
           "before a half, \"forward\" or \"backward\", whether its steps are of interest.")
      .def("record", &record, py::arg("choose"), py::arg("write"), py::arg("figures") = true, py::arg("every") = 1,
           "choose(half, [(kind, name, node, operator)]) says once per plan what to record: a number and a list of 0 "
           "and 1; write(number, run, numbers, forms, whole) gets the statistics of what was chosen after each half "
           "that "
           "is recorded, every so many-th forward.");
  m.def(
      "value_statistics",
      [](const py::object& value) {
        const at::Tensor read = read_value(value, DType::kUndefined);
        ValueStatistics found;
        {
          const py::gil_scoped_release release;
          found = statistics_of(read);
        }
        return packed({found}, true);
      },
      py::arg("value"), "Numbers and form of a tensor, a list of tensors or None, as in a recording.");
}

}  // namespace ortmodule

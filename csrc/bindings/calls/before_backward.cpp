#include "bindings/calls/before_backward.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/module_backward.h"

namespace py = pybind11;

namespace ortmodule {
namespace {

// A hook of ours, not of the user's: nobody looks at a result by it (Note [Results of results]).
class Call final : public torch::autograd::FunctionPreHook {
 public:
  explicit Call(py::object callable) : callable_(std::move(callable)) {}
  ~Call() override {
    const py::gil_scoped_acquire gil;
    callable_ = py::object();
  }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    const py::gil_scoped_acquire gil;
    callable_();
    return grads;
  }

 private:
  py::object callable_;
};

// Whether there is such a backward.
bool before_backward(const std::vector<std::optional<at::Tensor>>& results, py::object callable) {
  ModuleBackward* const step = step_behind(results);
  if (step) step->add_pre_hook(std::make_unique<Call>(std::move(callable)));
  return step != nullptr;
}

}  // namespace

void register_before_backward(py::module_& m) {
  m.def("before_backward", &before_backward, py::arg("results"), py::arg("callable"),
        "Calls `callable()` before the backward of the step that has given `results`; whether there is one.");
}

}  // namespace ortmodule

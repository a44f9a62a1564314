// A saved graph as a function of torch's tensors, for programs without Python.
//
//   const auto f = ortmodule::GraphFunction::load("model.onnx", {.trainable = {"weight"}});
//   const std::vector<at::Tensor> results = f({x, weight});   // inputs in the graph's order
//   results[0].backward();                                    // into weight.grad(), as autograd does
//
// The file is any ONNX model; `DebugOptions(save_onnx=True)` of the Python package writes those of a captured module.
// Link `ortmodule::ortmodule` of find_package(ortmodule); include no header of torch but those that you need.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ortmodule/error.h"
#include "ortmodule/export.h"
#include "ortmodule/value_info.h"

namespace ortmodule {

class Session;
namespace training {
class TrainingAgent;
}

struct GraphOptions {
  std::vector<std::string> trainable{};  // graph inputs whose gradient is wanted; none: the graph only infers
  std::string device = "cpu";            // where it runs, as torch spells it
  std::string dropout = "fast";          // "fast": counter-based, mask never stored; "torch": eager's draws
  std::string matmul = "auto";           // "auto": measured per shape class; "aten", "onednn"
  // What forward may keep for backward, in bytes or up to 1 as a fraction of what it would keep without recomputation;
  // none: only what is nearly free is computed again. Negative: nothing is.
  std::optional<double> memory_budget{};
  bool fusion = true;  // elementwise work in one kernel each, on the CPU
  bool allow_aten_operators = false;  // let the graph call operators of PyTorch by name, some of which read files
};

class ORTMODULE_API GraphFunction {
 public:
  // Reads, differentiates, optimises and plans. Tensor data outside of the file is read from its folder alone.
  // Throws Error: kParse, kInvalidGraph (a rule of ONNX is broken), kUnsupported, kInvalidArgument (no such file, no
  // such input, an option that is none).
  static GraphFunction load(const std::string& path, const GraphOptions& options = {});
  // The same from bytes of a serialized onnx.ModelProto, which must hold all of its tensors.
  static GraphFunction parse(std::string_view model, const GraphOptions& options = {});

  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;

  // The outputs in the graph's order, for one tensor per input (undefined: an optional one that is left out). With
  // history where gradients are enabled and a trainable input asks for one. May be called from several threads.
  // Throws Error kInvalidArgument for a tensor that does not fit its input, kRuntime where an operator fails.
  std::vector<at::Tensor> operator()(std::vector<at::Tensor> inputs) const;
  // The same with inputs and outputs by name; kInvalidArgument for a name too many or too few.
  std::map<std::string, at::Tensor> run(const std::map<std::string, at::Tensor>& inputs) const;

  // The plan that runs, as text.
  std::string plan() const;

 private:
  friend class training::TrainingAgent;
  struct State;
  explicit GraphFunction(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace ortmodule

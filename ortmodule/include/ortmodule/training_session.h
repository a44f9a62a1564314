// Trains a saved model, for programs without Python.
//
//   const auto session = ortmodule::TrainingSession::load("artifacts");  // of ortmodule.export_training_artifacts
//   for (...) {
//     const at::Tensor loss = session->train_step({images, labels});  // adds to the gradients
//     session->optimizer_step();
//     session->zero_grad();
//   }
//   session->save_checkpoint("last.safetensors");
//   session->export_model_for_inference("model.onnx");
//
// The same class as Python's (docs/training_sessions.md), with the same bits. May be used from several threads, which
// wait for one another. Link `ortmodule::ortmodule` of find_package(ortmodule).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ortmodule/error.h"
#include "ortmodule/export.h"
#include "ortmodule/value_info.h"

namespace ortmodule {

struct TrainingSessionOptions {
  std::string device = "cpu";    // where it trains, as torch spells it
  std::string dropout = "fast";  // "fast": counter-based, mask never stored; "torch": eager's draws
  std::string matmul = "auto";   // "auto": measured per shape class; "aten", "onednn"
  // What forward may keep for backward, in bytes or up to 1 as a fraction of what it would keep without recomputation;
  // none: only what is nearly free is computed again. Negative: nothing is.
  std::optional<double> memory_budget{};
  bool fusion = true;        // elementwise work in one kernel each, on the CPU
  bool allow_aten_operators = false;  // let graphs call operators of PyTorch by name, some of which read files
  std::string checkpoint{};  // to begin from; empty: the one that was written with the artifacts
};

// A parameter or buffer of the module, under its name there; the loss's are `loss.<name>`.
struct TrainingTensor {
  std::string name;
  bool trainable = false;
  std::vector<int64_t> shape{};
};

class TrainingSession {
 public:
  TrainingSession() = default;
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;
  virtual ~TrainingSession() = default;

  // Reads the artifacts of a folder, differentiates, optimises and plans. Throws Error: kInvalidArgument (no such
  // folder, an option that is none), kParse (a file is broken), kInvalidGraph, kUnsupported.
  ORTMODULE_API static std::shared_ptr<TrainingSession> load(const std::string& folder,
                                                             const TrainingSessionOptions& options = {});

  // What a step takes, and what eval_step returns, the loss first.
  virtual std::vector<ValueInfo> inputs() const = 0;
  virtual std::vector<ValueInfo> outputs() = 0;

  // The loss of one batch (0-d). Its gradients, times `gradient_scale`, are added to those since zero_grad(); what the
  // forward updates (BatchNorm's statistics) is updated. `inputs`: in the order of inputs(). Throws kInvalidArgument
  // for a tensor that does not fit, kRuntime where an operator fails; parameters are as before then.
  virtual at::Tensor train_step(std::vector<at::Tensor> inputs, double gradient_scale = 1) = 0;
  // The loss and the module's results, in evaluation mode and without gradients.
  virtual std::vector<at::Tensor> eval_step(std::vector<at::Tensor> inputs) = 0;
  virtual void zero_grad() = 0;
  // Scales all gradients so that their norm, as one vector, is no larger; the norm before that, as torch's
  // clip_grad_norm_ has both. kInvalidArgument where there is none.
  virtual double clip_grad_norm(double max_norm) = 0;
  // Updates each parameter that has a gradient, at the learning rates of this step. kInvalidArgument where none has.
  virtual void optimizer_step() = 0;
  // How many there were, those of the checkpoint included.
  virtual int64_t step_count() const = 0;

  // Of a group of the optimizer's parameters.
  virtual double learning_rate(size_t group = 0) const = 0;
  // Of every group, or of one. Ends a schedule.
  virtual void set_learning_rate(double rate, std::optional<size_t> group = {}) = 0;
  // From this step on: up from zero to each group's rate in `warmup_steps`, then down to zero at `total_steps`.
  virtual void set_linear_schedule(int64_t warmup_steps, int64_t total_steps) = 0;

  // Parameters, buffers, the optimizer's states, steps, rates and schedule, in one safetensors file. It is in place
  // whole or not at all: who is killed meanwhile finds what was there before. Throws kRuntime where the system does not
  // write.
  virtual void save_checkpoint(const std::string& path) const = 0;
  // Throws kInvalidArgument for one of another model, kParse for a broken file; nothing is changed then.
  virtual void load_checkpoint(const std::string& path) = 0;

  virtual std::vector<TrainingTensor> tensors() const = 0;
  // Copies, on the session's device. kInvalidArgument for a name that there is not.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  // Undefined where it has none.
  virtual at::Tensor gradient(const std::string& name) const = 0;
  // Copies from `value`, of the same shape and type.
  virtual void set_tensor(const std::string& name, const at::Tensor& value) = 0;

  // The module in evaluation mode with the present parameters, as an ONNX model that any runtime reads; `outputs`:
  // those alone, and nothing that they do not need. From 1 GiB on the weights lie beside it, in `<path>.data`.
  virtual void export_model_for_inference(const std::string& path,
                                          const std::vector<std::string>& outputs = {}) const = 0;
};

}  // namespace ortmodule

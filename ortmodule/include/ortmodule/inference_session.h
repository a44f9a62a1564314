// Runs ONNX models, for programs without Python.
//
//   ortmodule::InferenceSession session("model.onnx");
//   const std::vector<at::Tensor> results = session.run({{"x", x}}, {"scores"});
//
// or, with buffers that are bound once:
//
//   ortmodule::IOBinding binding(session);
//   binding.bind_input("x", x);
//   binding.bind_output("scores", buffer);
//   session.run(binding);
//
// The same class as Python's (docs/sessions.md). Link `ortmodule::ortmodule` of find_package(ortmodule).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ortmodule/error.h"
#include "ortmodule/export.h"
#include "ortmodule/value_info.h"

namespace ortmodule {

class RunStop;
class Session;
class IOBinding;

enum class GraphOptimizationLevel {
  kDisableAll,  // the passes alone without which it cannot run
  kBasic,       // those that keep every result bit for bit, too
  kExtended,    // those that may change the order of a sum, too; elementwise work is fused
};

enum class ExecutionMode {
  kSequential,  // nodes run one by one, on the thread that calls
  kParallel,    // nodes that do not wait for one another run side by side, on the CPU
};

struct SessionOptions {
  std::string device = "cpu";  // where inputs and outputs lie, as torch spells it
  // Names of execution providers with their options, in the order of priority; none: the device's own.
  std::vector<std::pair<std::string, std::map<std::string, std::string>>> providers{};
  std::string execution_order = "default";  // "priority_based": copies first, waits last; "memory_efficient"
  GraphOptimizationLevel graph_optimization_level = GraphOptimizationLevel::kExtended;
  std::vector<std::string> disabled_passes{};
  bool enable_mem_pattern = true;  // places of large values are learned from runs and kept for the next, on the CPU
  bool enable_mem_reuse = true;    // false: every value of a run stays until the run has ended
  int intra_op_num_threads = 0;    // of one operator; 0: at::get_num_threads() at each run
  ExecutionMode execution_mode = ExecutionMode::kSequential;
  // Of the parallel mode: how many nodes run side by side; 0: as many as the graph has, at most at::get_num_threads()
  // divided by intra_op_num_threads, which is what is left of them where it is 0.
  int inter_op_num_threads = 0;
  bool inter_op_allow_spinning = true;     // threads look for work for some hundred microseconds before they sleep
  bool use_per_session_threads = true;     // false: the process's (set_global_inter_op_threads)
  bool use_deterministic_compute = false;  // on the CPU: as under torch.use_deterministic_algorithms
  // Numbers for sizes that the model leaves free, by name and by denotation.
  std::map<std::string, int64_t> free_dimensions{}, free_dimensions_by_denotation{};
  // Tensors that stand for the model's initializers; held, not copied, where they are contiguous on the CPU.
  std::map<std::string, at::Tensor> initializers{};
  // Links in the model's folder are followed to external data in this one (of a hub's cache); empty: they are refused.
  std::string external_data_root{};
  // Where tensors of 1 MiB or more that the model has in its own bytes are put aside, in a file without a name that
  // goes with the session: those that kernels lay out anew take no memory beside that. Empty: they stay in memory.
  std::string weights_folder{};
  bool allow_aten_operators = false;  // nodes that call an operator of PyTorch by its name; some read files
  // What a model may cost that somebody else has made (docs/safety.md). One that wants more is an Error; kInvalidGraph.
  uint64_t max_tensor_bytes = uint64_t{64} << 30;  // of its tensors together
  size_t max_nodes = 500'000;                      // with those of bodies and functions, as often as they are called
  size_t max_nesting = 32;                         // of bodies in bodies, and of functions that call functions
  uint64_t max_run_bytes = 0;  // of a run's values at one time, on the CPU; 0: no value is larger than free memory
  double max_seconds = 0;      // of making the session, and of each run, looked at between nodes; 0: any
  std::string optimized_model_path{};  // where the graph that runs is written; empty: nowhere
};

// How many nodes run side by side over all sessions that are made from now on without threads of their own; throws
// Error kInvalidArgument below 1. Where it is never said: at::get_num_threads() when the first such session is made.
ORTMODULE_API void set_global_inter_op_threads(int threads, bool allow_spinning = true);

// Copies are one: what ends a run ends those of all copies.
class ORTMODULE_API RunOptions {
 public:
  RunOptions();
  bool only_execute_path_to_fetches = true;
  // Dropout without the input training_mode and BatchNormalization without the attribute do what they do in training:
  // drop by torch's generator, normalize with the batch's statistics (those of the model stay). The first such run
  // compiles the model for it; a session that was parsed from bytes and has such nodes keeps the bytes.
  bool training_mode = false;
  // Ends the runs with these options, from any thread, before their next node; later ones too, until go_on().
  void terminate() const;
  void go_on() const;

 private:
  friend class InferenceSession;
  std::shared_ptr<RunStop> stop_;
};

class ORTMODULE_API InferenceSession {
 public:
  using Feeds = std::vector<std::pair<std::string, at::Tensor>>;

  // Reads, optimises and plans. The file is mapped, and so are large tensors in files beside it, for which its folder
  // alone is looked at; they stay as they are while the session lives.
  // Throws Error: kParse, kInvalidGraph, kUnsupported, kInvalidArgument (no such file, an option that does not fit).
  explicit InferenceSession(const std::string& path, const SessionOptions& options = {});
  // The same from bytes of a serialized onnx.ModelProto, which must hold all of its tensors.
  static InferenceSession parse(std::string_view model, const SessionOptions& options = {});

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;

  // The outputs that are named (none: all), in that order; nothing is computed but what they need. Feeds may be
  // initializers that are inputs as well: the first run for some names compiles for them. May be called from several
  // threads. Throws Error kInvalidArgument for names or tensors that do not fit, kRuntime where an operator
  // fails, kTerminated.
  std::vector<at::Tensor> run(const Feeds& feeds, const std::vector<std::string>& output_names = {},
                              const RunOptions* options = nullptr) const;
  // Reads the bound inputs and writes the bound outputs.
  void run(IOBinding& binding, const RunOptions* options = nullptr) const;

  // The plan that runs, as text.
  std::string plan() const;

 private:
  friend class IOBinding;
  struct State;
  explicit InferenceSession(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::vector<at::Tensor> run_values(std::vector<at::Tensor> values, const std::vector<size_t>& wanted,
                                     const RunOptions* options, IOBinding* binding = nullptr) const;
  std::shared_ptr<const State> state_;
};

// Inputs and outputs of runs by one thread at a time. Tensors are held, their memory is the caller's: it is read and
// written at each run. From the second run on a node writes its result straight into a buffer of 32 KiB or more that is
// contiguous, of the result's type and shape, and meets no input or other buffer in memory; else the result is copied
// there once, after the last node. What a buffer holds when a run has failed is not said.
class ORTMODULE_API IOBinding {
 public:
  explicit IOBinding(const InferenceSession& session);

  // Throw Error kInvalidArgument for a name that the model does not have.
  void bind_input(const std::string& name, at::Tensor value);
  void bind_output(const std::string& name, at::Tensor buffer);
  void bind_output(const std::string& name);  // new memory at each run
  void clear_inputs();
  void clear_outputs();

  // Of the last run, in the order in which they were bound.
  const std::vector<at::Tensor>& outputs() const { return results_; }
  // Names of the outputs whose last results were copied into their buffers; others were written there.
  std::vector<std::string> copied() const;

 private:
  friend class InferenceSession;
  std::shared_ptr<const InferenceSession::State> state_;
  std::vector<at::Tensor> inputs_;   // by place; undefined: not bound
  std::vector<size_t> wanted_;       // places of the bound outputs
  std::vector<at::Tensor> buffers_;  // parallel; undefined: none
  std::vector<at::Tensor> results_;
  std::vector<char> copied_;  // parallel
};

}  // namespace ortmodule

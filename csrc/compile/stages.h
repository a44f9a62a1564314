// The stages that a graph passes, in this order. compile() and training_graph() call them and add what is theirs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradient/gradient_graph_builder.h"
#include "graph/graph.h"
#include "onnx/import.h"
#include "transforms/graph_history.h"
#include "transforms/pass_registry.h"

namespace ortmodule {

struct Stage {
  std::string name;
  double seconds = 0;
  size_t nodes = 0;
  std::shared_ptr<Graph> graph;  // null unless stages are kept
};

// Notes each stage when it is done: its name, its seconds, its node count and, if asked for, its graph; and tells
// `history`, which may be null.
class StageLog {
 public:
  explicit StageLog(bool keep, GraphHistory* history = nullptr) : keep_(keep), history_(history) {}
  void done(const std::string& name, const Graph& graph);
  std::vector<Stage> take() { return std::move(stages_); }

 private:
  using Clock = std::chrono::steady_clock;
  bool keep_;
  GraphHistory* history_;
  std::vector<Stage> stages_;
  Clock::time_point start_ = Clock::now();
};

// A serialized model with operators as the records have them, functions inlined, types inferred; `info` as in
// import_model. Throws what import_model and resolve throw.
std::unique_ptr<Graph> imported(std::string_view model, const ImportOptions& options, StageLog& log,
                                ModelInfo* info = nullptr);

struct PassSettings {
  TransformerManager::Options manager;
  bool training = true;
  bool counted_dropout = false;        // masks by counter, never stored; else as the standard's operator has them
  bool whole_masks = false;            // a mask is the same whichever rows are left out
  std::vector<std::string> trainable;  // graph inputs whose gradient is wanted
  PassChoice choice{};
  Prices prices{};      // of the provider that runs most
  SymbolTable sizes{};  // of the call that is compiled for
};

// The passes of a stage, in bodies of control flow too. The order stays topological; types may have to be inferred
// anew. Returns what each did.
std::vector<PassRecord> transform(Graph& graph, PassStage stage, const PassSettings& settings);

// The graph's outputs that can receive a gradient, and its inputs whose gradient is wanted, by position.
struct Roots {
  std::vector<size_t> y_outputs, x_inputs;
};

// Throws kInvalidArgument for a trainable input of a type without a gradient, kUnsupported for one through a container.
Roots find_roots(const Graph& graph, const std::vector<std::string>& trainable);

// Adds the gradients of the outputs that `mask` picks (empty: of all), as further outputs of the graph.
GradientResult differentiate(Graph& graph, const Roots& roots, const std::vector<bool>& mask);

// Gradient outputs after passes may have replaced them: the graph's outputs behind the first `forward` ones.
std::vector<NodeArg*> gradient_outputs(const Graph& graph, size_t forward, const std::vector<NodeArg*>& dxs);

}  // namespace ortmodule

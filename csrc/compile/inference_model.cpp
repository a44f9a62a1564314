#include "compile/inference_model.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/status.h"
#include "compile/result_owners.h"
#include "compile/stages.h"
#include "onnx/export.h"
#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

// An initializer in place of an input, under its name, which is free only when the input is gone.
void embed(Graph& graph, NodeArg* input, const TensorData& data) {
  const std::string name = input->name();
  NodeArg* meanwhile = graph.add_input("", input->type());
  graph.replace_all_uses(input, meanwhile);
  graph.remove_input(input);
  graph.replace_all_uses(meanwhile, graph.add_initializer(name, data));
  graph.remove_input(meanwhile);
}

void keep_outputs(Graph& graph, const std::vector<std::string>& wanted) {
  if (wanted.empty()) return;
  std::vector<NodeArg*> kept;
  std::string known;
  for (const NodeArg* output : graph.outputs()) known += (known.empty() ? "'" : ", '") + output->name() + "'";
  for (const std::string& name : wanted) {
    NodeArg* found = nullptr;
    for (NodeArg* output : graph.outputs())
      if (output->name() == name) found = output;
    ORTMODULE_CHECK_ARG(found, "the model has no output '", name, "'; it has ", known);
    kept.push_back(found);
  }
  graph.clear_outputs();
  for (NodeArg* output : kept) graph.add_output(output);
}

void remove_unused_inputs(Graph& graph) {
  const std::vector<NodeArg*> inputs = graph.inputs();
  for (NodeArg* input : inputs)
    if (input->uses().empty() && !input->is_graph_output()) graph.remove_input(input);
}

}  // namespace

void write_inference_model(std::string_view model, const std::map<std::string, TensorData>& weights,
                           const std::vector<std::string>& outputs, const std::string& path, uint64_t external_from) {
  const std::unique_ptr<Graph> graph = import_model(model.data(), model.size());
  resolve(*graph);
  take_result_owners(*graph);  // of no use to others
  keep_outputs(*graph, outputs);
  make_pass("dead_node_elimination")->apply(*graph, {});
  uint64_t bytes = 0;
  for (const auto& [name, data] : weights) {
    NodeArg* input = graph->find(name);
    ORTMODULE_CHECK_ARG(input && input->is_graph_input(), "the model has no input '", name, "'");
    if (input->uses().empty() && !input->is_graph_output()) {
      graph->remove_input(input);
      continue;
    }
    bytes += data.bytes->size();
    embed(*graph, input, data);
  }
  if (!outputs.empty()) remove_unused_inputs(*graph);
  resolve(*graph);
  ExportOptions options;
  const std::filesystem::path whole(path);
  if (bytes >= external_from) {
    options.external_data_dir = whole.parent_path().string();
    options.external_data_file = whole.filename().string() + ".data";
  }
  AtomicFile file(path);
  file.append(export_model(*graph, options));
  file.commit();
}

}  // namespace ortmodule

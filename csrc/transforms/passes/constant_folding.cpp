// Replaces nodes whose results are known now by initializers: nodes all of whose inputs are constants, sizes that
// turned out to be integers (Sizes, Shape).
//
// Values come from context.evaluate, because transforms/ knows no kernels; sizes need none. Never folded: random
// operators, side effects, opaque ATen nodes, initializers that are trained, graph outputs, results over
// options.fold_limit_bytes (a folded Expand of a scalar would turn four bytes into a file). Nodes without inputs are
// folded only as Sizes.
#include <algorithm>

#include "base/status.h"
#include "records/registry.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

bool foldable(const Node& node, const TransformContext& context) {
  const OpRecord* record = node.record();
  if (!record || record->has(kRandom) || record->has(kSideEffect) || record->has(kOpaque)) return false;
  if (record->has(kCollective)) return false;
  if (node.inputs().empty()) return false;
  for (const NodeArg* in : node.inputs())
    if (in && (!in->constant() || context.grad_inputs.count(in))) return false;
  for (const auto& [name, value] : node.attributes())
    if (std::holds_alternative<std::shared_ptr<Graph>>(value)) return false;
  for (const NodeArg* out : node.outputs()) {
    if (!out) continue;
    if (out->is_graph_output() || !out->type().shape) return false;
    int64_t bytes = std::max<int64_t>(1, static_cast<int64_t>(dtype_size(out->type().dtype)));
    for (const Dim& d : *out->type().shape) {
      if (!d.is_known() || d.value() < 0) return false;
      if (__builtin_mul_overflow(bytes, d.value(), &bytes)) return false;
    }
    if (bytes > context.options.fold_limit_bytes) return false;
  }
  return true;
}

// The elements of an int64 output when all are integers already.
bool known_sizes(const Node& node, TensorData& data) {
  const NodeArg* out = node.output(0);
  if (node.outputs().size() != 1 || !out || out->is_graph_output() || !out->known_dims()) return false;
  if (out->type().dtype != DType::kInt64 || !out->type().shape || out->type().shape->size() > 1) return false;
  std::vector<int64_t> values;
  for (const Dim& d : *out->known_dims()) {
    if (!d.is_known()) return false;
    values.push_back(d.value());
  }
  data = TensorData::of_ints(values);
  if (!out->type().shape->empty()) return true;
  data.dims.clear();
  return values.size() == 1;
}

class ConstantFolding : public GraphTransformer {
 public:
  const char* name() const override { return "constant_folding"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    size_t modifications = 0;
    graph.for_each([&](Node& node) {  // in order: a folded node's consumers come later and see its constant
      std::vector<TensorData> values(1);
      if (!known_sizes(node, values[0])) {
        if (!context.evaluate || !foldable(node, context)) return;
        values = context.evaluate(node);
        if (values.empty()) return;
      }
      replace(graph, node, values);
      ++modifications;
    });
    return modifications;
  }

 private:
  static void replace(Graph& graph, Node& node, const std::vector<TensorData>& values) {
    ORTMODULE_INTERNAL(values.size() == node.outputs().size(), "evaluating ", node.describe(), " gave ", values.size(),
                       " results for ", node.outputs().size(), " outputs");
    for (size_t i = 0; i < values.size(); ++i)
      if (node.output(i)) graph.replace_all_uses(node.output(i), graph.constant(values[i]));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_PASS(ConstantFolding, PassLevel::kBasic, kBothStages, pass_place::kCleanUp + 1);

}  // namespace ortmodule

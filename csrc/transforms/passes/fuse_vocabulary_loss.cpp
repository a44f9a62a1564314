// Linear -> (Reshape, Cast to float) -> SoftmaxCrossEntropyLoss becomes ai.ortmodule::LinearCrossEntropy where nothing
// else reads the scores and they are large: they then never exist whole.
#include "records/registry.h"
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/row_region.h"

namespace ortmodule {
namespace {

constexpr int64_t kLeastScores = int64_t{1} << 24;
constexpr int64_t kLeastClasses = 8192;  // where the number of rows is not known

const Node* only_reader_of(const NodeArg* value) {
  return value->uses().size() == 1 && !value->is_graph_output() ? value->producer() : nullptr;
}

// The Linear behind the scores; null when it is not one or its scores are needed otherwise.
const Node* projection(const Node& loss) {
  const NodeArg* value = loss.input(0);
  bool widened = false;
  for (const Node* node = only_reader_of(value); node; node = only_reader_of(value)) {
    const DType type = node->output(0)->type().dtype;
    if (node->qualified_op() == "ai.ortmodule::Linear") {
      // In 16 bits the loss itself is computed in float, so it must be float in the graph.
      return type == DType::kFloat || type == DType::kDouble || (type == DType::kBFloat16 && widened) ? node : nullptr;
    }
    const bool cast =
        node->qualified_op() == "Cast" && type == DType::kFloat && node->input(0)->type().dtype == DType::kBFloat16;
    const auto &in = node->input(0)->type().shape, &out = node->output(0)->type().shape;
    // A Reshape that keeps the classes keeps the rows.
    const bool flattens = (node->qualified_op() == "Reshape" || node->qualified_op() == "Flatten") && in && out &&
                          !in->empty() && !out->empty() && in->back() == out->back() && out->back().is_known();
    if (!cast && !flattens) return nullptr;
    widened = widened || cast;
    value = node->input(0);
  }
  return nullptr;
}

bool is_large(const Shape& scores) {
  if (!scores[1].is_known()) return false;
  if (!scores[0].is_known()) return scores[1].value() >= kLeastClasses;
  return scores[0].value() * scores[1].value() >= kLeastScores;
}

class FuseVocabularyLoss : public GraphTransformer {
 public:
  const char* name() const override { return "fuse_vocabulary_loss"; }

  size_t apply(Graph& graph, const TransformContext& context) override {
    if (!context.training || context.grad_inputs.empty()) return 0;
    size_t done = 0;
    for (Node* node : graph.nodes()) done += node->qualified_op() == "SoftmaxCrossEntropyLoss" && fuse(graph, *node);
    return done;
  }

 private:
  static bool fuse(Graph& graph, Node& loss) {
    const auto &scores = loss.input(0)->type().shape, &labels = loss.input(1)->type().shape;
    const NodeArg* log_prob = loss.output(1);
    if (loss.get_string("reduction", "mean") == "none" || !scores || scores->size() != 2 || !labels ||
        labels->size() != 1 || !is_large(*scores) ||
        (log_prob && (!log_prob->uses().empty() || log_prob->is_graph_output())))
      return false;
    const Node* linear = projection(loss);
    if (!linear || !linear->input(0)->type().shape) return false;
    NodeArg* x = linear->input(0);
    const Shape& sizes = *x->type().shape;
    if (!sizes.back().is_known() || sizes.back().value() == 0) return false;
    if (sizes.size() != 2)
      x = CompactRows(graph).emit("Reshape", {x, graph.constant(TensorData::of_ints({-1, sizes.back().value()}))}, {},
                                  &loss);
    Attributes attributes{{"reduction", loss.get_string("reduction", "mean")}};
    if (loss.find_attribute("ignore_index")) attributes["ignore_index"] = loss.get_int("ignore_index", 0);
    Node* fused = graph.add_node(kOwnDomain, "LinearCrossEntropy",
                                 {x, linear->input(1), linear->input(2), loss.input(1), loss.input(2)}, {""},
                                 std::move(attributes), &loss, loss.name());
    fused->metadata() = loss.metadata();
    infer_node(*fused);
    replace_output(graph, loss, fused->output(0));
    return true;
  }

  // The loss may be an output of the graph, whose name must stay.
  static void replace_output(Graph& graph, Node& loss, NodeArg* value) {
    NodeArg* old = loss.output(0);
    const std::string name = old->name();
    std::vector<size_t> positions;
    for (size_t i = 0; i < graph.outputs().size(); ++i)
      if (graph.outputs()[i] == old) positions.push_back(i);
    graph.replace_all_uses(old, value);
    graph.remove(&loss);
    if (positions.empty()) return;
    Node* keeper = graph.add_node("", "Identity", {value}, {name});
    infer_node(*keeper);
    for (size_t i : positions) graph.set_output(i, keeper->output(0));
  }
};

}  // namespace

ORTMODULE_PASS(FuseVocabularyLoss, PassLevel::kExtended, kForwardOnly, pass_place::kPatterns);

}  // namespace ortmodule

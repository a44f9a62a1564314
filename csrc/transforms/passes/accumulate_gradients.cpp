// A sum of a gradient and the scattered gradient of Gather or Embedding: the second is added to the first in place.
//
// A table that is read by position and used otherwise too (tied word embeddings, tables shared by an encoder and a
// decoder) gets several gradients. Alone, each scattered one is a table of zeros with a few rows in it, which then is
// added as a whole: two passes over the table and its memory once more, at the peak of a step. With GatherGrad's
// optional input `base` only the rows that were read are touched.
//
// Not for 16-bit types, where rows would be rounded onto a large sum one by one.
#include "records/resolve.h"
#include "transforms/pass_registry.h"

namespace ortmodule {
namespace {

class AccumulateGradientsRule : public RewriteRule {
 public:
  const char* name() const override { return "accumulate_gradients"; }
  std::vector<std::string> ops() const override { return {"Sum"}; }

  bool match(const Node& node, const TransformContext&) const override { return scattered(node) != kNone; }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const size_t which = scattered(node);
    std::vector<Node*> chain;  // from the last table to the first
    for (NodeArg* value = node.input(which); value; value = chain.back()->input(kBase))
      chain.push_back(value->producer());
    NodeArg* sum = node.input(1 - which);
    for (size_t i = chain.size(); i-- > 0;) {
      std::vector<NodeArg*> inputs = chain[i]->inputs();
      inputs.resize(kBase + 1, nullptr);
      inputs[kBase] = sum;
      Node* onto = graph.add_node(chain[i]->domain(), chain[i]->op(), inputs, {""}, chain[i]->attributes(), &node,
                                  chain[i]->name());
      onto->metadata() = chain[i]->metadata();
      onto->set_phase(node.phase());
      infer_node(*onto);
      sum = onto->output(0);
    }
    graph.replace_all_uses(node.output(0), sum);
    graph.remove(&node);
    for (Node* old : chain) graph.remove(old);
  }

 private:
  static constexpr size_t kNone = 2, kBase = 3;

  // The operand that is a scattered gradient, or a chain of them, that nobody else reads; the last where both are.
  static size_t scattered(const Node& node) {
    if (node.inputs().size() != 2 || !node.output(0) || node.input(0) == node.input(1)) return kNone;
    const TypeInfo &a = node.input(0)->type(), &b = node.input(1)->type();
    if ((a.dtype != DType::kFloat && a.dtype != DType::kDouble) || a.dtype != b.dtype) return kNone;
    // Broadcasting may stand behind a Sum of the user's: a gradient's operands have one shape.
    if (!a.shape || !b.shape || *a.shape != *b.shape) return kNone;
    for (const size_t i : {size_t{1}, size_t{0}})
      if (takes_base(node.input(i), node.phase())) return i;
    return kNone;
  }

  static bool takes_base(const NodeArg* value, Phase phase) {
    for (; value; value = value->producer()->input(kBase)) {
      const Node* made = value->producer();
      if (!made || value->is_graph_output() || value->uses().size() != 1 || made->phase() != phase) return false;
      const std::string op = made->qualified_op();
      if (op != "ai.ortmodule::GatherGrad" && op != "ai.ortmodule::EmbeddingGrad") return false;
    }
    return true;
  }
};

}  // namespace

ORTMODULE_RULES("accumulate_gradients", PassLevel::kExtended, kJointOnly, pass_place::kBackward,
                AccumulateGradientsRule);

}  // namespace ortmodule

// The normalized sum of embeddings that BERT and its like begin with becomes one node, in graphs of inference:
//
//     LayerNormalization(Gather(words, ids) + Gather(positions, where) [+ Gather(segments, kinds)])
//
// in any order of the sum, over the last axis, with scale and bias; ids and kinds [batch, seq], `where` of the same
// sizes, [1, seq] or [seq]. com.microsoft's EmbedLayerNormalization is this operator, here of int64 too (files get
// int32: transforms/schema_types.h). Who else reads the sum reads it from the third output. A mask's row sums,
// ReduceSum(mask, axis 1), become the second output where the mask is int32[batch, seq], an input of the graph, and
// they are read by nodes that read the normalization, as com.microsoft's Attention does.
#include <algorithm>

#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr size_t kCounts = 1, kSum = 2;  // outputs of the node
constexpr size_t kMostTables = 3;

struct Lookup {
  NodeArg *table = nullptr, *ids = nullptr;
};

// Rows of a table that is an initializer or an input of the graph.
Lookup lookup_of(const NodeArg* value) {
  const Node* gather = made_by(value, "Gather");
  if (!gather || gather->get_int("axis", 0) != 0) return {};
  NodeArg *table = gather->input(0), *ids = gather->input(1);
  if (table->producer() || !table->type().shape || table->type().shape->size() != 2 || !ids->type().shape) return {};
  return {table, ids};
}

// The terms of a sum; false where there are too many, or one is no lookup. Inner sums have no other reader.
bool add_terms(const NodeArg* value, std::vector<Lookup>& to, bool root) {
  const Node* add = root ? value->producer() : made_by(value, "Add");
  if (!add || add->qualified_op() != "Add") {
    const Lookup one = root ? Lookup{} : lookup_of(value);
    if (one.table) to.push_back(one);
    return one.table && to.size() <= kMostTables;
  }
  return add_terms(add->input(0), to, false) && add_terms(add->input(1), to, false);
}

struct Parts {
  Lookup word, position, segment;  // the last perhaps without a table
};

std::optional<Parts> find(const Node& norm) {
  const NodeArg* sum = norm.input(0);
  std::vector<Lookup> terms;
  if (!norm.input(2) || !add_terms(sum, terms, true) || terms.size() < 2) return std::nullopt;
  const Shape& all = *sum->type().shape;
  if (all.size() != 3) return std::nullopt;
  const auto is_full = [&](const Lookup& one) { return *one.ids->type().shape == Shape{all[0], all[1]}; };
  const auto is_shared = [&](const Lookup& one) {
    const Shape& ids = *one.ids->type().shape;
    return ids == Shape{all[1]} || ids == Shape{Dim(1), all[1]};
  };
  // Of terms of the full sizes, which is which is nothing but a name: a shared one holds positions.
  size_t position = terms.size() - 1;
  for (size_t i = 0; i < terms.size(); ++i)
    if (!is_full(terms[i])) position = i;
  Parts parts;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (!is_full(terms[i]) && (i != position || !is_shared(terms[i]))) return std::nullopt;
    if ((*terms[i].table->type().shape)[1] != all[2] || terms[i].table->type().dtype != sum->type().dtype)
      return std::nullopt;
    if (i != position) (parts.word.table ? parts.segment : parts.word) = terms[i];
  }
  parts.position = terms[position];
  return parts;
}

// Whether all readers read the normalization too: they stand behind it.
bool is_read_behind(const NodeArg* value, const NodeArg* normalized) {
  const auto reads = [&](const Use& use) {
    const auto& inputs = use.node->inputs();
    return std::find(inputs.begin(), inputs.end(), normalized) != inputs.end();
  };
  return !value->is_graph_output() && std::all_of(value->uses().begin(), value->uses().end(), reads);
}

// ReduceSum(mask) over its rows; null.
Node* counts_of_mask(const Graph& graph, const NodeArg* ids, const NodeArg* normalized) {
  for (const NodeArg* input : graph.inputs()) {
    if (input == ids || input->type().dtype != DType::kInt32 || !same_shape(input, ids)) continue;
    for (const Use& use : input->uses()) {
      Node* node = use.node;
      if (node->qualified_op() == "ReduceSum" && use.index == 0 && number(node->input(1)) == 1.0 &&
          node->get_int("keepdims", 1) == 0 && is_read_behind(node->output(0), normalized))
        return node;
    }
  }
  return nullptr;
}

class EmbedLayerNormRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_embed_layer_norm"; }
  std::vector<std::string> ops() const override { return {"LayerNormalization"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && is_floating(node.output(0)->type().dtype) && normalizes_rows(node) &&
           find(node).has_value();
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Parts parts = *find(node);
    NodeArg* const sum = node.input(0);
    Node* const add = sum->producer();
    Node* const counts = counts_of_mask(graph, parts.word.ids, node.output(0));
    const bool read = !has_one_use(sum);
    const std::vector<NodeArg*> inputs{
        parts.word.ids,      parts.segment.ids, parts.word.table, parts.position.table,
        parts.segment.table, node.input(1),     node.input(2),    counts ? counts->input(0) : nullptr,
        parts.position.ids};
    Node* embed = graph.add_node("com.microsoft", "EmbedLayerNormalization", inputs, {""},
                                 {{"epsilon", node.get_float("epsilon", 1e-5)}}, add, node.name());
    embed->metadata() = node.metadata();
    if (counts) graph.move_output(counts->output(0), embed, kCounts);  // the node itself is a dead one now
    graph.replace_all_uses(node.output(0), embed->output(0));
    graph.remove(&node);
    if (read) graph.move_output(sum, embed, kSum);
    graph.remove(add);
    infer_node(*embed);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_embed_layer_norm", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 8,
                EmbedLayerNormRule);

}  // namespace ortmodule

// Key heads that are repeated for groups of query heads (Llama's repeat_kv) are repeated no more, in graphs of
// inference:
//
//     Attention(q, r(k), r(v)) with r(k) = Reshape(Expand(Unsqueeze(k, 2)))
//
// of k [batch, heads, keys, size], expanded to [batch, heads, group, keys, size] and read as [batch, heads * group,
// keys, size], becomes Attention(q, k, v): the standard's operator lets key head i serve the query heads from i * group
// on. Nothing else reads what is repeated.
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr size_t kKey = 1, kValue = 2, kPastKey = 4;

// What is repeated, and how many times; null.
struct Repeated {
  NodeArg* heads = nullptr;
  Dim group;
};

Repeated repeated(const NodeArg* value) {
  const Node* reshape = made_by(value, "Reshape");
  const Node* expand = reshape ? made_by(reshape->input(0), "Expand") : nullptr;
  const Node* unsqueeze = expand ? made_by(expand->input(0), "Unsqueeze") : nullptr;
  if (!unsqueeze || number(unsqueeze->input(1)) != 2.0) return {};
  NodeArg* const heads = unsqueeze->input(0);
  const auto &own = heads->type().shape, &wide = reshape->input(0)->type().shape, &all = value->type().shape;
  if (!own || !wide || !all || own->size() != 4 || wide->size() != 5) return {};
  const Dim group = (*wide)[2];
  const bool fits = *wide == Shape{(*own)[0], (*own)[1], group, (*own)[2], (*own)[3]} &&
                    *all == Shape{(*own)[0], (*own)[1] * group, (*own)[2], (*own)[3]};
  return fits ? Repeated{heads, group} : Repeated{};
}

class GroupedHeadsRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_grouped_heads"; }
  std::vector<std::string> ops() const override { return {"Attention"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    if (context.training || node.input(kPastKey)) return false;
    const Repeated k = repeated(node.input(kKey)), v = repeated(node.input(kValue));
    return k.heads && v.heads && k.group == v.group;
  }

  void rewrite(Graph&, Node& node, const TransformContext&) const override {
    for (const size_t i : {kKey, kValue}) node.set_input(i, repeated(node.input(i)).heads);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_grouped_heads", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 4, GroupedHeadsRule);

}  // namespace ortmodule

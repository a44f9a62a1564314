// Rotary position embedding that is written out becomes the standard's RotaryEmbedding, in graphs of inference:
//
//     x * c + RotateHalf(x) * s,  c = Unsqueeze(Cos(Concat(f, f)), 1), s = Unsqueeze(Sin(Concat(f, f)), 1)
//
// of x [batch, heads, seq, size] and angles f [batch or 1, seq, size / 2]; between Cos and Unsqueeze perhaps a Cast or
// a Mul by a number. The caches are those of f alone, half as large. RotateHalf is what fuse_rotate_half makes of
// halves that change places; nothing else reads it, the products and their parts.
#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

// The way from angles to a cache: Cos or Sin, then perhaps Cast or Mul by a number.
struct Cache {
  NodeArg* angles = nullptr;         // f
  std::vector<const Node*> steps{};  // from f on
};

bool is_unsqueezed_at_heads(const Node& node) {
  const std::optional<double> axis = number(node.input(1));
  const auto& shape = node.output(0)->type().shape;
  return shape && shape->size() == 4 && (axis == 1.0 || axis == -3.0);
}

// The cache that `value` [batch, 1, seq, size] is; `op`: "Cos" or "Sin".
Cache cache_of(const NodeArg* value, const char* op) {
  const Node* unsqueeze = value->producer();
  if (!unsqueeze || unsqueeze->qualified_op() != "Unsqueeze" || !is_unsqueezed_at_heads(*unsqueeze)) return {};
  Cache cache;
  for (const Node* node = unsqueeze->input(0)->producer(); node;) {
    cache.steps.insert(cache.steps.begin(), node);
    const std::string kind = node->qualified_op();
    if (kind == op) {
      const Node* concat = node->input(0)->producer();
      const auto& shape = node->input(0)->type().shape;
      if (!concat || concat->qualified_op() != "Concat" || concat->inputs().size() != 2 || !shape ||
          concat->input(0) != concat->input(1))
        return {};
      const int64_t axis = concat->get_int("axis", 0);
      if (axis != -1 && axis != static_cast<int64_t>(shape->size()) - 1) return {};
      cache.angles = concat->input(0);
      return cache;
    }
    if (kind != "Cast" && !(kind == "Mul" && number(node->input(1)))) return {};
    node = node->input(0)->producer();
  }
  return {};
}

struct Found {
  NodeArg* x = nullptr;
  Cache cos, sin;
};

// x and the other factor of a product, of which one factor is `x` or a rotation of it.
Found find(const Node& add) {
  for (size_t i = 0; i < 2; ++i) {
    const Node *plain = made_by(add.input(i), "Mul"), *turned = made_by(add.input(1 - i), "Mul");
    for (size_t k = 0; plain && turned && k < 2; ++k) {
      const Node* rotation = made_by(turned->input(k), "ai.ortmodule::RotateHalf");
      if (!rotation) continue;
      NodeArg* const x = rotation->input(0);
      for (size_t j = 0; j < 2; ++j) {
        if (plain->input(j) != x) continue;
        Found found{x, cache_of(plain->input(1 - j), "Cos"), cache_of(turned->input(1 - k), "Sin")};
        if (found.cos.angles && found.sin.angles) return found;
      }
    }
  }
  return {};
}

bool fits(const Found& found) {
  const auto &x = found.x->type().shape, &angles = found.cos.angles->type().shape;
  if (!x || !angles || x->size() != 4 || angles->size() != 3 || found.sin.angles != found.cos.angles) return false;
  return ((*angles)[0] == Dim(1) || (*angles)[0] == (*x)[0]) && (*angles)[1] == (*x)[2] &&
         (*angles)[2] * Dim(2) == (*x)[3];
}

class RotaryRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_rotary_embedding"; }
  std::vector<std::string> ops() const override { return {"Add"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    if (context.training || !is_floating(node.output(0)->type().dtype)) return false;
    const Found found = find(node);
    return found.x && fits(found) && same_shape(found.x, node.output(0)) &&
           found.x->type().dtype == found.cos.steps.back()->output(0)->type().dtype &&
           found.x->type().dtype == found.sin.steps.back()->output(0)->type().dtype;
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Found found = find(node);
    const auto half = [&](const Cache& cache) {
      NodeArg* value = cache.angles;
      for (const Node* step : cache.steps) {
        std::vector<NodeArg*> inputs = step->inputs();
        inputs[0] = value;
        Node* same = graph.add_node(step->domain(), step->op(), inputs, {""}, step->attributes(), &node);
        same->metadata() = step->metadata();
        infer_node(*same);
        value = same->output(0);
      }
      return value;
    };
    NodeArg *cos = half(found.cos), *sin = half(found.sin);
    Node* rotary = graph.add_node("", "RotaryEmbedding", {found.x, cos, sin}, {""}, {}, &node, node.name());
    rotary->metadata() = node.metadata();
    infer_node(*rotary);
    graph.replace_all_uses(node.output(0), rotary->output(0));
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_rotary_embedding", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 3, RotaryRule);

}  // namespace ortmodule

// Attention that is written out becomes one node. In graphs of inference, as torch's exporter writes them:
//
//     MatMul(p, v) with p = Softmax(s), perhaps Where(IsNaN(p), 0, p), and s = MatMul(q * a, k^T * b) * c + mask
//
// each of a, b, c and the mask perhaps absent; k^T is a Transpose of the last two axes, also between Reshapes that
// count batch and heads as one. Rows that the mask hides whole are zeros in Attention: where nothing looks for NaN,
// only scores without a mask become one, and with a mask that is known to hide no row: finite numbers, or a constant
// that leaves a key in each row. Values that something else reads, or that are graph outputs, stay. Not here:
// attention of a training capture, which is one node from the start.
#include <cmath>
#include <limits>
#include <optional>

#include "records/resolve.h"
#include "transforms/pass_registry.h"
#include "transforms/patterns.h"

namespace ortmodule {
namespace {

constexpr size_t kRank = 4;

const Shape* shape_of(const NodeArg* value, size_t rank = kRank) {
  const auto& shape = value->type().shape;
  return shape && shape->size() == rank ? &*shape : nullptr;
}

// What a value is times numbers; those go to `scale`.
NodeArg* unscaled(NodeArg* value, double& scale) {
  for (;;) {
    const Node* node = made_by(value, "Mul");
    const bool divides = !node;
    if (divides) node = made_by(value, "Div");
    if (!node) return value;
    const size_t place = number(node->input(1)) || divides ? 1 : 0;
    const std::optional<double> by = number(node->input(place));
    NodeArg* const rest = node->input(1 - place);
    if (!by || !shape_of(rest) || rest->type().shape != value->type().shape) return value;
    scale = divides ? scale / *by : scale * *by;
    value = rest;
  }
}

std::vector<int64_t> permutation(const Node& transpose, size_t rank) {
  std::vector<int64_t> perm = transpose.get_ints("perm");
  for (size_t i = rank; perm.size() < rank; --i) perm.push_back(static_cast<int64_t>(i) - 1);
  return perm;
}

// Where k is found: `value` with these axes, none for itself.
struct Keys {
  NodeArg* value = nullptr;
  std::vector<int64_t> perm;
};

// Through Reshapes that count batch and heads as one.
Keys keys_within_reshapes(const NodeArg* transposed) {
  const Node* outer = made_by(transposed, "Reshape");
  const Node* transpose = outer ? made_by(outer->input(0), "Transpose") : nullptr;
  const Node* inner = transpose ? made_by(transpose->input(0), "Reshape") : nullptr;
  if (!inner || !shape_of(transpose->input(0), 3) || permutation(*transpose, 3) != std::vector<int64_t>{0, 2, 1})
    return {};
  const Shape *k = shape_of(inner->input(0)), *flat = shape_of(transpose->input(0), 3), *out = shape_of(transposed);
  if (!k || !out || (*k)[2] != (*flat)[1] || (*k)[3] != (*flat)[2]) return {};
  return *out == Shape{(*k)[0], (*k)[1], (*k)[3], (*k)[2]} ? Keys{inner->input(0), {}} : Keys{};
}

Keys keys_of(const NodeArg* transposed) {
  const Node* transpose = made_by(transposed, "Transpose");
  if (!transpose) return keys_within_reshapes(transposed);
  std::vector<int64_t> perm = permutation(*transpose, kRank);
  std::swap(perm[2], perm[3]);
  if (perm == std::vector<int64_t>{0, 1, 2, 3}) perm.clear();
  return {transpose->input(0), std::move(perm)};
}

struct Parts {
  NodeArg *q = nullptr, *v = nullptr, *mask = nullptr;
  Keys k;
  double scale = 1;
};

// q and k of the scores; false where they are something else.
bool find_scores(NodeArg* scores, Parts& out) {
  const Node* product = made_by(unscaled(scores, out.scale), "MatMul");
  if (!product) return false;
  out.q = unscaled(product->input(0), out.scale);
  out.k = keys_of(unscaled(product->input(1), out.scale));
  const Shape *q = shape_of(out.q), *transposed = shape_of(product->input(1)), *v = shape_of(out.v);
  if (!out.k.value || !shape_of(out.k.value) || !q || !transposed || !v) return false;
  const auto same = [&](const Shape& other) { return other[0] == (*q)[0] && other[1] == (*q)[1]; };
  return same(*transposed) && same(*v) && (*transposed)[3] == (*v)[2];
}

// Whether an initializer's elements are finite; `by_row`: one in each row of the last axis is, and none is no number.
bool is_finite(const NodeArg* value, bool by_row) {
  if (!value->constant() || value->constant()->dims.empty()) return number(value) && std::isfinite(*number(value));
  const std::vector<double> all = value->constant()->to_doubles();
  const auto width = static_cast<size_t>(value->constant()->dims.back());
  for (size_t row = 0; width > 0 && row < all.size(); row += width) {
    size_t finite = 0;
    for (size_t i = row; i < row + width; ++i) {
      if (std::isnan(all[i]) || all[i] > std::numeric_limits<double>::max()) return false;
      finite += std::isfinite(all[i]);
    }
    if (finite < (by_row ? 1 : width)) return false;
  }
  return true;
}

// Whether the mask cannot hide all keys of a row. Of a choice between two numbers also behind what moves elements.
bool leaves_keys(const NodeArg* mask) {
  if (is_finite(mask, true)) return true;
  for (const Node* node = mask->producer(); node; node = node->input(0)->producer()) {
    const std::string op = node->qualified_op();
    if (op == "Where") return is_finite(node->input(1), false) && is_finite(node->input(2), false);
    if (op != "Expand" && op != "Unsqueeze" && op != "Squeeze" && op != "Slice" && op != "Transpose") return false;
  }
  return false;
}

std::optional<Parts> find(const Node& node) {
  Parts out;
  out.v = node.input(1);
  NodeArg* probabilities = node.input(0);
  bool without_nan = false;
  if (const Node* where = made_by(probabilities, "Where")) {
    const Node* asked = made_by(where->input(0), "IsNaN");
    if (!asked || asked->input(0) != where->input(2) || number(where->input(1)) != 0.0) return std::nullopt;
    probabilities = where->input(2);
    if (probabilities->uses().size() != 2 || probabilities->is_graph_output()) return std::nullopt;
    without_nan = true;
  } else if (!has_one_use(probabilities)) {
    return std::nullopt;
  }
  const Node* softmax = probabilities->producer();
  if (!softmax || softmax->qualified_op() != "Softmax" || !shape_of(probabilities)) return std::nullopt;
  if (const int64_t axis = softmax->get_int("axis", -1); axis != -1 && axis != 3) return std::nullopt;
  NodeArg* scores = softmax->input(0);
  if (find_scores(scores, out)) return out;
  const Node* masked = made_by(scores, "Add");
  for (size_t i = 0; masked && i < 2; ++i) {
    out.scale = 1;
    out.mask = masked->input(1 - i);
    NodeArg* unmasked = masked->input(i);
    if (!out.mask->type().shape || out.mask->type().shape->size() < 2 || !shape_of(unmasked)) continue;
    if (!without_nan && !leaves_keys(out.mask)) continue;
    if (*shape_of(unmasked) == *shape_of(scores) && find_scores(unmasked, out)) return out;
  }
  return std::nullopt;
}

class AttentionRule : public RewriteRule {
 public:
  const char* name() const override { return "fuse_attention"; }
  std::vector<std::string> ops() const override { return {"MatMul"}; }

  bool match(const Node& node, const TransformContext& context) const override {
    return !context.training && is_floating(node.output(0)->type().dtype) && find(node).has_value();
  }

  void rewrite(Graph& graph, Node& node, const TransformContext&) const override {
    const Parts parts = *find(node);
    const auto add = [&](const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes) {
      Node* added = graph.add_node("", op, inputs, {""}, std::move(attributes), &node, node.name());
      added->metadata() = node.metadata();
      infer_node(*added);
      return added->output(0);
    };
    NodeArg* const k =
        parts.k.perm.empty() ? parts.k.value : add("Transpose", {parts.k.value}, {{"perm", parts.k.perm}});
    std::vector<NodeArg*> inputs{parts.q, k, parts.v};
    if (parts.mask) inputs.push_back(parts.mask);
    NodeArg* const out = add("Attention", inputs, {{"scale", parts.scale}});
    graph.replace_all_uses(node.output(0), out);
    graph.remove(&node);
  }
};

}  // namespace

ORTMODULE_RULES("fuse_attention", PassLevel::kExtended, kForwardOnly, pass_place::kPatterns + 3, AttentionRule);

}  // namespace ortmodule

#include "ops/attention/body_parts.h"

#include <cmath>

namespace ortmodule::attention {
namespace {

int64_t known_dim(const NodeArg* value, size_t axis) {
  const auto& shape = value->type().shape;
  return shape && axis < shape->size() && (*shape)[axis].is_known() ? (*shape)[axis].value() : -1;
}

}  // namespace

NodeArg* length(BodyContext& c, NodeArg* value, int64_t axis) {
  if (const int64_t n = known_dim(value, static_cast<size_t>(axis)); n >= 0) return c.ints({n});
  return c.emit("Shape", {value}, {{"start", axis}, {"end", axis + 1}});
}

NodeArg* repeat_heads(BodyContext& c, NodeArg* kv, NodeArg* q) {
  const auto &have = kv->type().shape, &want = q->type().shape;
  if (have && want && (*have)[1] == (*want)[1]) return kv;
  NodeArg* group = known_dim(kv, 1) > 0 && known_dim(q, 1) > 0 ? c.ints({known_dim(q, 1) / known_dim(kv, 1)})
                                                               : c.emit("Div", {length(c, q, 1), length(c, kv, 1)});
  const Attributes axis{{"axis", int64_t{0}}};
  NodeArg* grouped = c.emit("Unsqueeze", {kv, c.ints({2})});
  grouped = c.emit("Expand", {grouped, c.emit("Concat", {c.ints({1, 1}), group, c.ints({1, 1})}, axis)});
  return c.emit("Reshape",
                {grouped, c.emit("Concat", {c.ints({0}), length(c, q, 1), length(c, kv, 2), length(c, kv, 3)}, axis)});
}

NodeArg* root_of_scale(BodyContext& c, NodeArg* q) {
  if (c.node().find_attribute("scale")) return c.scalar(std::sqrt(std::abs(c.node().get_float("scale", 1.0))), q);
  if (const int64_t size = known_dim(q, 3); size > 0)
    return c.scalar(std::sqrt(1.0 / std::sqrt(static_cast<double>(size))), q);
  NodeArg* size = c.emit("Cast", {length(c, q, 3)}, {{"to", static_cast<int64_t>(q->type().dtype)}});
  return c.emit("Pow", {size, c.scalar(-0.25, size)});
}

NodeArg* scaled_scores(BodyContext& c, NodeArg* q, NodeArg* k, NodeArg* root) {
  NodeArg* transposed = c.emit("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  NodeArg* scaled = c.emit("Mul", {q, root});
  if (c.node().get_float("scale", 1.0) < 0) scaled = c.emit("Neg", {scaled});
  return c.emit("MatMul", {scaled, c.emit("Mul", {transposed, root})});
}

NodeArg* cast(BodyContext& c, NodeArg* value, DType dtype) {
  if (value->type().dtype == dtype) return value;
  return c.emit("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}});
}

}  // namespace ortmodule::attention

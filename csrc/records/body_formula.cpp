#include "records/body_formula.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace ortmodule {

NodeArg* BodyFormula::sum_to(NodeArg* x, NodeArg* like) {
  if (x->type().shape && like->type().shape && *x->type().shape == *like->type().shape) return x;
  return sum_to_sizes(x, shape(like));
}

NodeArg* BodyFormula::matrix_transpose(NodeArg* x) {
  std::vector<int64_t> perm(static_cast<size_t>(rank(x)));
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return transpose(x, perm);
}

NodeArg* BodyFormula::shape(NodeArg* x, int64_t start, int64_t end) {
  if (const auto& dims = x->type().shape) {
    const auto n = static_cast<int64_t>(dims->size());
    std::vector<int64_t> known;
    const int64_t first = start < 0 ? start + n : start, last = std::min(end < 0 ? end + n : end, n);
    for (int64_t i = first; i < last && (*dims)[static_cast<size_t>(i)].is_known(); ++i)
      known.push_back((*dims)[static_cast<size_t>(i)].value());
    if (static_cast<int64_t>(known.size()) == std::max<int64_t>(last - first, 0)) return c.ints(known);
  }
  Attributes attributes;
  if (start != 0) attributes["start"] = start;
  if (end != INT64_MAX) attributes["end"] = end;
  return c.emit("Shape", {x}, std::move(attributes));
}

NodeArg* BodyFormula::part(NodeArg* sizes, int64_t start, int64_t end) {
  if (const TensorData* constant = sizes->constant()) {
    const std::vector<int64_t> all = constant->to_ints();
    const auto n = static_cast<int64_t>(all.size());
    const int64_t last = std::min(end, n);
    return c.ints({all.begin() + std::min(start, last), all.begin() + last});
  }
  return c.emit("Slice", {sizes, c.ints({start}), c.ints({end}), c.ints({0})});
}

NodeArg* BodyFormula::filled(NodeArg* sizes, double value, DType dtype) {
  TensorData element = TensorData::scalar(dtype, value);
  element.dims = {1};
  return c.emit("ConstantOfShape", {sizes}, {{"value", std::move(element)}});
}

NodeArg* BodyFormula::scatter_add(NodeArg* sizes, NodeArg* indices, NodeArg* updates, int64_t axis) {
  return c.emit("ScatterElements", {filled(sizes, 0, updates->type().dtype), indices, updates},
                {{"axis", axis}, {"reduction", std::string("add")}});
}

int64_t BodyFormula::rank(const NodeArg* x) const {
  ORTMODULE_CHECK(x->type().shape, kUnsupported, c.node().describe(),
                  " has no form in plain ONNX operators without a known rank");
  return static_cast<int64_t>(x->type().shape->size());
}

NodeArg* normalization_dx(BodyFormula& f, NodeArg* g, NodeArg* xhat, NodeArg* rstd, const std::vector<int64_t>& axes,
                          bool centered) {
  NodeArg* inner = centered ? f.sub(g, f.mean(g, axes)) : g;
  return f.mul(rstd, f.sub(inner, f.mul(xhat, f.mean(f.mul(g, xhat), axes))));
}

}  // namespace ortmodule

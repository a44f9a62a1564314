// ai.ortmodule::ConcatSum: Concat along the last axis, and the sums of the result over all others: the gradient of a
// joint projection's parts, and that of its bias, in one pass (transforms/join_launches.h).
#include "base/status.h"
#include "records/body_formula.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_concat_sum(InferContext& c) {
  for (size_t i = 0; i < c.input_count(); ++i)
    if (!c.node().input(i)) c.error(str("part ", i, " is missing"));
  const DType type = c.dtype(0), sum = c.attr_int("wide", 0) ? DType::kFloat : type;
  if (!c.shape(0) || c.shape(0)->empty()) {
    c.out(0, type, std::nullopt);
    return c.out(1, sum, c.fresh_shape(1));
  }
  Shape whole = *c.shape(0);
  for (size_t i = 1; i < c.input_count(); ++i) {
    const Shape* part = c.shape(i);
    whole.back() = part && part->size() == whole.size() ? whole.back() + part->back() : c.fresh_dim();
  }
  c.out(1, sum, Shape{whole.back()});
  c.out(0, type, std::move(whole));
}

void concat_sum_body(BodyContext& c) {
  BodyFormula f(c);
  std::vector<NodeArg*> parts;
  for (size_t i = 0; i < c.node().inputs().size(); ++i) parts.push_back(c.in(i));
  NodeArg* whole = c.emit("Concat", parts, {{"axis", int64_t{-1}}});
  if (c.wants(0)) c.out(0, whole);
  if (!c.wants(1)) return;
  NodeArg* terms = c.node().get_int("wide", 0) ? f.cast(whole, DType::kFloat) : whole;
  std::vector<int64_t> axes;
  for (int64_t i = 0; i + 1 < f.rank(c.in(0)); ++i) axes.push_back(i);
  c.out(1, axes.empty() ? terms : f.sum(terms, axes, false));
}

}  // namespace

// Parts [.., n_k] of one type -> whole [.., sum of n_k], sums [sum of n_k], floats with `wide`.
ORTMODULE_OP("ai.ortmodule", ConcatSum, 1)
    .variadic_input("parts")
    .output("whole")
    .output("sums", Presence::kOptional)
    .attr("wide", AttrKind::kInt)
    .infer(infer_concat_sum)
    .not_differentiable()
    .body(concat_sum_body);

}  // namespace ortmodule

// ai.ortmodule::GroupedMatMul: each run of rows of x times a matrix of its own, as a mixture of experts needs it.
//
// One operator rather than a loop, because the lengths of the runs are data, and because the gradient then is one pass
// over the same runs.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_grouped(InferContext& c) {
  const Shape *x = c.shape_of_rank(0, 2), *w = c.shape_of_rank(1, 3);
  if (c.dtype(0) != c.dtype(1))
    c.error(str("x and w should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(1))));
  if (x && w) {
    const Dim &have = (*x)[1], &want = (*w)[1];
    if (have.is_known() && want.is_known() && have != want)
      c.error(str("x has ", have.text(), " columns, w expects ", want.text()));
  }
  if (!x || !w) return c.out(0, c.dtype(0), std::nullopt);
  c.out(0, c.dtype(0), Shape{(*x)[0], (*w)[2]});
}

void infer_grouped_grad(InferContext& c) {
  const Shape *dy = c.shape(0), *x = c.shape(1), *w = c.shape(2), *ends = c.shape(3);
  std::optional<Shape> dx, dw;
  if (dy && w) dx = Shape{(*dy)[0], (*w)[1]};
  if (dy && x && ends) dw = Shape{(*ends)[0], (*x)[1], (*dy)[1]};
  c.out(0, c.dtype(0), std::move(dx));
  c.out(1, c.dtype(0), std::move(dw));
}

// Every row reads its own group's matrix; rows behind the last end read any and become zero.
void grouped_body(BodyContext& c) {
  const auto ends = c.emit("Cast", {c.in(2)}, {{"to", int64_t{7}}});
  const std::vector<int64_t> first{0}, second{1}, last{2};
  NodeArg* rows =
      c.emit("Range", {c.scalar_int(0),
                       c.emit("Squeeze", {c.emit("Shape", {c.in(0)}, {{"start", int64_t{0}}, {"end", int64_t{1}}})}),
                       c.scalar_int(1)});
  NodeArg* behind = c.emit("GreaterOrEqual",
                           {c.emit("Unsqueeze", {rows, c.ints(second)}), c.emit("Unsqueeze", {ends, c.ints(first)})});
  NodeArg* group =
      c.emit("ReduceSum", {c.emit("Cast", {behind}, {{"to", int64_t{7}}}), c.ints(second)}, {{"keepdims", int64_t{0}}});
  NodeArg* groups = c.emit("Squeeze", {c.emit("Shape", {ends})});
  NodeArg* some = c.emit("Min", {group, c.emit("Sub", {groups, c.scalar_int(1)})});
  NodeArg* matrices = c.emit("Gather", {c.in(1), some}, {{"axis", int64_t{0}}});
  NodeArg* product = c.emit("MatMul", {c.emit("Unsqueeze", {c.in(0), c.ints(second)}), matrices});
  NodeArg* y = c.emit("Squeeze", {product, c.ints(second)});
  NodeArg* inside = c.emit("Unsqueeze", {c.emit("Less", {group, groups}), c.ints(second)});
  c.out(0, c.emit("Where", {inside, y, c.scalar(0, y)}));
}

// Each row has one product with one of the matrices w[experts, in, out].
double grouped_flops(const Node& node, const SizeOf& size) {
  return 2 * count_elements(*node.input(0)->type().shape, size) * size(node.input(1)->type().shape->back());
}

}  // namespace

// x[rows, in], w[groups, in, out], ends[groups] (where each run of rows ends) -> y[rows, out]
ORTMODULE_OP("ai.ortmodule", GroupedMatMul, 1)
    .input("x")
    .input("w")
    .input("ends")
    .output("y")
    .infer(infer_grouped)
    .no_grad({"ends"})
    .grad({"x", "w"},
          [](GradContext& c) {
            const bool dx = c.needs(0), dw = c.needs(1);
            const auto grads = c.emit_some("ai.ortmodule::GroupedMatMulGrad",
                                           {c.GO(0), dw ? c.I(0) : nullptr, dx ? c.I(1) : nullptr, c.I(2)}, {dx, dw});
            c.GI(0, grads[0]);
            c.GI(1, grads[1]);
          })
    .flops(grouped_flops)
    .body(grouped_body);

// dy[rows, out], x (for dw), w (for dx), ends -> dx, dw; an output that is absent costs nothing.
ORTMODULE_OP("ai.ortmodule", GroupedMatMulGrad, 1)
    .input("dy")
    .optional_input("x")
    .optional_input("w")
    .input("ends")
    .output("dx", Presence::kOptional)
    .output("dw", Presence::kOptional)
    .infer(infer_grouped_grad)
    .not_differentiable();

}  // namespace ortmodule

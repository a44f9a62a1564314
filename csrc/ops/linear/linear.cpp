// ai.ortmodule::Linear: y = x @ w^T + b with a weight stored as torch.nn.Linear stores it.
//
// One operator rather than Transpose + MatMul + Add, because the library's product takes the transposed weight and the
// bias in one call, and because the gradient is then one node that flattens by views only.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

void infer_linear(InferContext& c) {
  const Shape* w = c.shape_of_rank(1, 2);
  const Shape* x = c.shape(0);
  if (c.dtype(0) != c.dtype(1))
    c.error(str("x and w should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(1))));
  if (x && w) {
    if (x->empty()) c.error("x should have at least one dimension");
    const Dim &have = x->back(), &want = (*w)[1];
    if (have.is_known() && want.is_known() && have != want)
      c.error(str("x has ", have.text(), " features, w expects ", want.text()));
  }
  if (!x) return c.out(0, c.dtype(0), std::nullopt);
  Shape out = *x;
  out.back() = w ? (*w)[0] : c.fresh_dim();
  c.out(0, c.dtype(0), std::move(out));
}

// x and w are passed only to the products that read them: a frozen weight frees x, a leaf x frees w.
void linear_gradient(GradContext& c) {
  const bool dx = c.needs(0), dw = c.needs(1), db = c.needs(2);
  const auto grads =
      c.emit_some("ai.ortmodule::LinearGrad", {c.GO(0), dw ? c.I(0) : nullptr, dx ? c.I(1) : nullptr}, {dx, dw, db});
  c.GI(0, grads[0]);
  c.GI(1, grads[1]);
  c.GI(2, grads[2]);
}

void infer_linear_grad(InferContext& c) {
  const Shape *dy = c.shape(0), *x = c.shape(1), *w = c.shape(2);
  std::optional<Shape> dx, dw, db;
  if (dy && w) {
    dx = *dy;
    dx->back() = (*w)[1];
  }
  if (dy && x) dw = Shape{dy->back(), x->back()};
  if (dy) db = Shape{dy->back()};
  c.out(0, c.dtype(0), std::move(dx));
  c.out(1, c.attr_int("wide", 0) ? DType::kFloat : c.dtype(0), std::move(dw));
  c.out(2, c.dtype(0), std::move(db));
}

void linear_body(BodyContext& c) {
  NodeArg* transposed = c.emit("Transpose", {c.in(1)}, {{"perm", std::vector<int64_t>{1, 0}}});
  NodeArg* y = c.emit("MatMul", {c.in(0), transposed});
  c.out(0, c.in(2) ? c.emit("Add", {y, c.in(2)}) : y);
}

double linear_flops(const Node& node, const SizeOf& size) {
  return 2 * count_elements(*node.output(0)->type().shape, size) * size(node.input(0)->type().shape->back());
}

// A product for each of dx and dw.
double linear_grad_flops(const Node& node, const SizeOf& size) {
  const NodeArg* operand = node.input(1) ? node.input(1) : node.input(2);
  if (!operand) return 0;
  const double product = 2 * count_elements(*node.input(0)->type().shape, size) * size(operand->type().shape->back());
  return product * ((node.output(0) ? 1 : 0) + (node.output(1) ? 1 : 0));
}

constexpr RowRule kLinearRows{
    .inputs = [](const Node& node, const Shape& out,
                 size_t lead) { return out.size() > lead ? rows_of(node, 0, out, lead) : std::nullopt; },
    .axes =
        [](const Node& node, const Shape& out, RowAxes axes) {
          return std::max(axes.batch, axes.length) + 1 < out.size() ? of_first(node, axes) : InputAxes{};
        },
    .product = true};

void linear_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg *dy = c.in(0), *x = c.in(1), *w = c.in(2);
  const auto rows = [&](NodeArg* t) {
    return f.rank(t) == 2 ? t : f.reshape(t, f.concat({c.ints({-1}), f.shape(t, -1)}));
  };
  if (c.wants(0)) c.out(0, f.matmul(dy, w));
  const auto factor = [&](NodeArg* t) {
    return c.node().get_int("wide", 0) ? f.cast(rows(t), DType::kFloat) : rows(t);
  };
  if (c.wants(1)) c.out(1, f.matmul(f.transpose(factor(dy), {1, 0}), factor(x)));
  if (c.wants(2)) c.out(2, f.sum(rows(dy), {0}, false));
}

}  // namespace

// x[..., in], w[out, in], b[out] -> y[..., out]
ORTMODULE_OP("ai.ortmodule", Linear, 1)
    .input("x")
    .input("w")
    .optional_input("b")
    .output("y")
    .infer(infer_linear)
    .grad({"x", "w", "b"}, linear_gradient)
    .body(linear_body)
    .flops(linear_flops)
    .rows(kLinearRows);

// dy[..., out], x[..., in] (for dw), w[out, in] (for dx) -> dx, dw, db; an output that is absent costs nothing. With
// `wide` dw is a float whatever the factors are, as products add it up.
ORTMODULE_OP("ai.ortmodule", LinearGrad, 1)
    .input("dy")
    .optional_input("x")
    .optional_input("w")
    .output("dx", Presence::kOptional)
    .output("dw", Presence::kOptional)
    .output("db", Presence::kOptional)
    .attr("wide", AttrKind::kInt)
    .infer(infer_linear_grad)
    .not_differentiable()
    .body(linear_grad_body)
    .flops(linear_grad_flops);

}  // namespace ortmodule

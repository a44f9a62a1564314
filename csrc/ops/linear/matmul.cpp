// MatMul with NumPy's rules: batch dimensions broadcast, a 1-D operand is a row (left) or a column (right).
#include "ops/linear/matmul_shape.h"

#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

void infer_matmul(InferContext& c) {
  if (c.dtype(0) != c.dtype(1))
    c.error(str("A and B should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(1))));
  c.out(0, c.dtype(0), matmul_shape(c, 0, 1));
}

// An operand is passed only where the other's gradient reads it; in its place go its sizes, which say which batch
// dimensions were broadcast.
void matmul_gradient(GradContext& c) {
  const bool da = c.needs(0), db = c.needs(1);
  const auto grads = c.emit_some("ai.ortmodule::MatMulGrad",
                                 {c.GO(0), db ? c.I(0) : nullptr, da ? c.I(1) : nullptr,
                                  da && !db ? c.sizes_of(c.I(0)) : nullptr, db && !da ? c.sizes_of(c.I(1)) : nullptr},
                                 {da, db});
  c.GI(0, grads[0]);
  c.GI(1, grads[1]);
}

void infer_matmul_grad(InferContext& c) {
  for (size_t i = 0; i < 2; ++i) {
    if (c.has(1 + i)) {
      c.out(i, c.dtype(0), c.shape(1 + i) ? std::optional<Shape>(*c.shape(1 + i)) : std::nullopt);
    } else {
      c.out(i, c.dtype(0), c.dims_value(3 + i));
    }
  }
}

double matmul_flops(const Node& node, const SizeOf& size) {
  return 2 * count_elements(*node.output(0)->type().shape, size) * size(node.input(0)->type().shape->back());
}

// A product for each of dA and dB; the axis that A and B share is A's last and B's last but one.
double matmul_grad_flops(const Node& node, const SizeOf& size) {
  const Shape* a = shape_of(node.input(1));
  const Shape* b = shape_of(node.input(2));
  if (!a && !b) return 0;
  const double shared = size(a ? a->back() : b->size() > 1 ? (*b)[b->size() - 2] : b->back());
  const double product = 2 * count_elements(*node.input(0)->type().shape, size) * shared;
  return product * ((node.output(0) ? 1 : 0) + (node.output(1) ? 1 : 0));
}

constexpr RowRule kMatMulRows{.inputs =
                                  [](const Node& node, const Shape& out, size_t lead) {
                                    const Shape *a = shape_of(node.input(0)), *b = shape_of(node.input(1));
                                    const bool of_rows = a && a->size() > lead && b && b->size() == 2;
                                    return of_rows ? rows_of(node, 0, out, lead) : std::nullopt;
                                  },
                              .product = true};

// The rank of operand i, which is there or has its sizes there.
int64_t operand_rank(BodyFormula& f, size_t i) {
  if (NodeArg* operand = f.c.in(1 + i)) return f.rank(operand);
  return f.rank(f.c.node().output(i));
}

void matmul_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const int64_t ranks[] = {operand_rank(f, 0), operand_rank(f, 1)};
  NodeArg* dy = c.in(0);
  if (ranks[1] == 1) dy = f.unsqueeze(dy, {-1});
  if (ranks[0] == 1) dy = f.unsqueeze(dy, {-2});
  for (size_t i = 0; i < 2; ++i) {
    if (!c.wants(i)) continue;
    NodeArg* other = c.in(2 - i);
    if (f.rank(other) == 1) other = f.unsqueeze(other, {i == 0 ? int64_t{1} : int64_t{0}});
    other = f.matrix_transpose(other);
    NodeArg* d = i == 0 ? f.matmul(dy, other) : f.matmul(other, dy);
    if (ranks[i] == 1) d = f.squeeze(d, {i == 0 ? int64_t{-2} : int64_t{-1}});
    c.out(i, c.in(1 + i) ? f.sum_to(d, c.in(1 + i)) : f.sum_to_sizes(d, c.in(3 + i)));
  }
}

}  // namespace

// A[..., M, K], B[..., K, N] -> Y[..., M, N]
ORTMODULE_OP("", MatMul, 1)
    .input("A")
    .input("B")
    .output("Y")
    .infer(infer_matmul)
    .grad({"A", "B"}, matmul_gradient)
    .flops(matmul_flops)
    .rows(kMatMulRows);

ORTMODULE_OP("ai.ortmodule", MatMulGrad, 1)
    .input("dy")
    .optional_input("A")
    .optional_input("B")
    .host_input("A_sizes", Presence::kOptional)
    .host_input("B_sizes", Presence::kOptional)
    .output("dA", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .infer(infer_matmul_grad)
    .not_differentiable()
    .body(matmul_grad_body)
    .flops(matmul_grad_flops);

}  // namespace ortmodule

// Gemm: y = alpha * A' @ B' + beta * C, where A' and B' are A and B, transposed when transA and transB say so.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/row_rule.h"

namespace ortmodule {
namespace {

void infer_gemm(InferContext& c) {
  const Shape *a = c.shape_of_rank(0, 2), *b = c.shape_of_rank(1, 2);
  const size_t ta = c.attr_int("transA", 0) != 0, tb = c.attr_int("transB", 0) != 0;
  if (!a || !b) return c.out(0, c.dtype(0), std::nullopt);
  const Dim &ka = (*a)[1 - ta], &kb = (*b)[tb];
  if (ka.is_known() && kb.is_known() && ka != kb)
    c.error(str("A and B do not fit: ", ka.text(), " columns against ", kb.text(), " rows"));
  c.out(0, c.dtype(0), Shape{(*a)[ta], (*b)[1 - tb]});
}

// A and B come from one node; C's gradient is dy summed to C's shape, which is the plain column sum for a bias.
void gemm_gradient(GradContext& c) {
  const bool da = c.needs(0), db = c.needs(1);
  if (da || db) {
    Attributes attributes;
    for (const char* name : {"transA", "transB"}) attributes[name] = c.node().get_int(name, 0);
    attributes["alpha"] = c.node().get_float("alpha", 1.0);
    const auto grads = c.emit_some("ai.ortmodule::GemmGrad", {c.GO(0), db ? c.I(0) : nullptr, da ? c.I(1) : nullptr},
                                   {da, db}, std::move(attributes));
    c.GI(0, grads[0]);
    c.GI(1, grads[1]);
  }
  if (c.needs(2)) {
    NodeArg* sum = c.reduce_to(c.GO(0), c.I(2));
    const double beta = c.node().get_float("beta", 1.0);
    c.GI(2, beta == 1.0 ? sum : c.emit("Mul", {sum, c.scalar(beta, sum)}));
  }
}

void infer_gemm_grad(InferContext& c) {
  const Shape *dy = c.shape(0), *a = c.shape(1), *b = c.shape(2);
  const bool ta = c.attr_int("transA", 0) != 0, tb = c.attr_int("transB", 0) != 0;
  std::optional<Shape> da, db;
  if (dy && b) {
    const Dim &m = (*dy)[0], &k = (*b)[tb ? 1 : 0];
    da = ta ? Shape{k, m} : Shape{m, k};
  }
  if (dy && a) {
    const Dim &n = (*dy)[1], &k = (*a)[ta ? 0 : 1];
    db = tb ? Shape{n, k} : Shape{k, n};
  }
  c.out(0, c.dtype(0), std::move(da));
  c.out(1, c.dtype(0), std::move(db));
}

double gemm_flops(const Node& node, const SizeOf& size) {
  const Dim& inner = (*node.input(0)->type().shape)[node.get_int("transA", 0) ? 0 : 1];
  return 2 * count_elements(*node.output(0)->type().shape, size) * size(inner);
}

// A product for each of dA and dB.
double gemm_grad_flops(const Node& node, const SizeOf& size) {
  const NodeArg *a = node.input(1), *b = node.input(2);
  if (!a && !b) return 0;
  const Dim& inner =
      a ? (*a->type().shape)[node.get_int("transA", 0) ? 0 : 1] : (*b->type().shape)[node.get_int("transB", 0) ? 1 : 0];
  const double product = 2 * count_elements(*node.input(0)->type().shape, size) * size(inner);
  return product * ((node.output(0) ? 1 : 0) + (node.output(1) ? 1 : 0));
}

constexpr RowRule kGemmRows{
    .inputs =
        [](const Node& node, const Shape& out, size_t lead) {
          const Shape* bias = shape_of(node.input(2));
          const bool spread = node.input(2) && (!bias || bias->size() > 1);
          return lead == 1 && !spread && !node.get_int("transA", 0) ? rows_of(node, 0, out, lead) : std::nullopt;
        },
    .product = true};

void gemm_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const bool ta = c.node().get_int("transA", 0) != 0, tb = c.node().get_int("transB", 0) != 0;
  NodeArg* dy = f.mul(c.in(0), c.node().get_float("alpha", 1.0));
  const auto t = [&](NodeArg* x, bool transposed) { return transposed ? f.transpose(x, {1, 0}) : x; };
  if (c.wants(0)) c.out(0, t(f.matmul(dy, t(c.in(2), !tb)), ta));
  if (c.wants(1)) c.out(1, t(f.matmul(t(c.in(1), !ta), dy), tb));
}

}  // namespace

// A[M, K], B[K, N], C broadcast to [M, N] -> Y[M, N]
ORTMODULE_OP("", Gemm, 1)
    .input("A")
    .input("B")
    .optional_input("C")
    .output("Y")
    .attr("alpha", AttrKind::kFloat)
    .attr("beta", AttrKind::kFloat)
    .attr("transA", AttrKind::kInt)
    .attr("transB", AttrKind::kInt)
    .infer(infer_gemm)
    .grad({"A", "B", "C"}, gemm_gradient)
    .flops(gemm_flops)
    .rows(kGemmRows);

// dy[M, N], A (for dB), B (for dA) -> dA, dB
ORTMODULE_OP("ai.ortmodule", GemmGrad, 1)
    .input("dy")
    .optional_input("A")
    .optional_input("B")
    .output("dA", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .attr("alpha", AttrKind::kFloat)
    .attr("transA", AttrKind::kInt)
    .attr("transB", AttrKind::kInt)
    .infer(infer_gemm_grad)
    .not_differentiable()
    .body(gemm_grad_body)
    .flops(gemm_grad_flops);

}  // namespace ortmodule

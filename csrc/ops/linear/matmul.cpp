// MatMul with NumPy's rules: batch dimensions broadcast, a 1-D operand is a row (left) or a column (right).
#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

void infer_matmul(InferContext& c) {
  if (c.dtype(0) != c.dtype(1))
    c.error(str("A and B should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(1))));
  const Shape *a = c.shape(0), *b = c.shape(1);
  if (!a || !b) return c.out(0, c.dtype(0), std::nullopt);
  if (a->empty() || b->empty()) c.error("A and B should have at least one dimension");
  const Dim &ka = a->back(), &kb = b->size() == 1 ? (*b)[0] : (*b)[b->size() - 2];
  if (ka.is_known() && kb.is_known() && ka != kb)
    c.error(str("A and B do not fit: shapes ", shape_text(*a), " and ", shape_text(*b)));
  const Shape batch_a(a->begin(), a->size() > 1 ? a->end() - 2 : a->begin());
  const Shape batch_b(b->begin(), b->size() > 1 ? b->end() - 2 : b->begin());
  Shape out = *c.broadcast(&batch_a, &batch_b);
  if (a->size() > 1) out.push_back((*a)[a->size() - 2]);
  if (b->size() > 1) out.push_back(b->back());
  c.out(0, c.dtype(0), std::move(out));
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

}  // namespace

// A[..., M, K], B[..., K, N] -> Y[..., M, N]
ORTMODULE_OP("", MatMul, 13).input("A").input("B").output("Y").infer(infer_matmul).grad({"A", "B"}, matmul_gradient);

ORTMODULE_OP("ai.ortmodule", MatMulGrad, 1)
    .input("dy")
    .optional_input("A")
    .optional_input("B")
    .host_input("A_sizes", Presence::kOptional)
    .host_input("B_sizes", Presence::kOptional)
    .output("dA", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .infer(infer_matmul_grad)
    .not_differentiable();

}  // namespace ortmodule

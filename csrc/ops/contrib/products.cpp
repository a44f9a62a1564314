// com.microsoft's fused products and sums: FusedMatMul, TransposeMatMul, ScaledSum. Gradients of products run the
// operator again.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// alpha A' B', where ' swaps the last two axes (trans) or moves the first axis before the last (transBatch).
Shape operand(const Shape& s, bool trans, bool trans_batch) {
  Shape out = s;
  if (trans_batch && s.size() > 2) {
    out.erase(out.begin());
    out.insert(out.end() - 1, s[0]);
  }
  if (trans && out.size() > 1) std::swap(out[out.size() - 1], out[out.size() - 2]);
  return out;
}

void infer_fused_matmul(InferContext& c) {
  const Shape *a = c.shape(0), *b = c.shape(1);
  if (!a || !b || a->size() < 2 || b->size() < 2) return c.out(0, c.dtype(0), std::nullopt);
  const Shape left = operand(*a, c.attr_int("transA", 0) != 0, c.attr_int("transBatchA", 0) != 0),
              right = operand(*b, c.attr_int("transB", 0) != 0, c.attr_int("transBatchB", 0) != 0);
  const Dim &inner = left.back(), &other = right[right.size() - 2];
  if (inner.is_known() && other.is_known() && inner != other)
    c.error(str("inner sizes ", inner.text(), " and ", other.text(), " differ"));
  const Shape left_batch(left.begin(), left.end() - 2), right_batch(right.begin(), right.end() - 2);
  auto y = c.broadcast(&left_batch, &right_batch);
  if (y) {
    y->push_back(left[left.size() - 2]);
    y->push_back(right.back());
  }
  c.out(0, c.dtype(0), std::move(y));
}

void fused_matmul(OpRecord& r) {
  r.input("A")
      .input("B")
      .output("Y")
      .attr("alpha", AttrKind::kFloat)
      .attr("transA", AttrKind::kInt)
      .attr("transB", AttrKind::kInt)
      .infer(infer_fused_matmul)
      .grad({"A", "B"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::FusedMatMulGrad"); });
}

ORTMODULE_OP("com.microsoft", TransposeMatMul, 1).apply(fused_matmul);
ORTMODULE_OP("com.microsoft", FusedMatMul, 1)
    .apply(fused_matmul)
    .attr("transBatchA", AttrKind::kInt)
    .attr("transBatchB", AttrKind::kInt);
ORTMODULE_OP("ai.ortmodule", FusedMatMulGrad, 1).apply(rerun_record);

// scale_0 input_0 + scale_1 input_1 + scale_2 input_2, all of one shape
ORTMODULE_OP("com.microsoft", ScaledSum, 1)
    .input("input_0")
    .input("input_1")
    .optional_input("input_2")
    .output("output")
    .required_attr("scale_0", AttrKind::kFloat)
    .required_attr("scale_1", AttrKind::kFloat)
    .attr("scale_2", AttrKind::kFloat)
    .infer(infer_same)
    .traits(kElementwise)
    .grad({"input_0", "input_1", "input_2"}, [](GradContext& c) {
      for (size_t i = 0; i < c.input_count(); ++i) {
        if (!c.needs(i)) continue;
        const double scale = c.node().get_float("scale_" + std::to_string(i), 1);
        c.GI(i, c.emit("Mul", {c.GO(0), c.scalar(scale, c.GO(0))}));
      }
    });

}  // namespace
}  // namespace ortmodule

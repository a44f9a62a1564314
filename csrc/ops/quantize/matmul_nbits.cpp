// com.microsoft's MatMulNBits: a product with a weight of 2, 4 or 8 bits that is quantized by blocks of a row.
//
// Gradients reach the activations, the scales and the bias (adapters train over such weights); they run it again, so
// that no dequantized weight is kept.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {

// A[..., K], B[N, K / block_size, block_size * bits / 8] bytes, low bits first, scales[N * K / block_size],
// zero_points: of A's type, or bytes packed as B is; bias[N] -> Y[..., N] = A W^T + bias, W = (B - zero_points) *
// scales
ORTMODULE_OP("com.microsoft", MatMulNBits, 1)
    .input("A")
    .input("B")
    .input("scales")
    .optional_input("zero_points")
    .optional_input("g_idx")
    .optional_input("bias")
    .output("Y")
    .required_attr("K", AttrKind::kInt)
    .required_attr("N", AttrKind::kInt)
    .attr("accuracy_level", AttrKind::kInt)
    .attr("bits", AttrKind::kInt)
    .required_attr("block_size", AttrKind::kInt)
    .infer([](InferContext& c) {
      const int64_t bits = c.attr_int("bits", 4), block = c.attr_int("block_size", 0);
      const int64_t k = c.attr_int("K", 0), n = c.attr_int("N", 0);
      if (bits != 2 && bits != 4 && bits != 8) c.error(str("bits should be 2, 4 or 8, got ", bits));
      if (block < 16 || (block & (block - 1)) != 0)
        c.error(str("block_size should be a power of two of at least 16, got ", block));
      if (k <= 0 || n <= 0) c.error(str("K and N should be positive, got ", k, " and ", n));
      std::optional<Shape> y;
      if (const Shape* a = c.shape(0)) {
        if (a->empty() || (a->back().is_known() && a->back().value() != k))
          c.error(str("A should be [..., ", k, "], got ", shape_text(*a)));
        y = *a;
        y->back() = Dim(n);
      }
      c.out(0, c.dtype(0), std::move(y));
    })
    .no_grad({"B", "zero_points", "g_idx"})
    .grad({"A", "scales", "bias"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::MatMulNBitsGrad"); });
ORTMODULE_OP("ai.ortmodule", MatMulNBitsGrad, 1).apply(rerun_record);

}  // namespace ortmodule

// Matrix products by the library that is fastest for their shape on this machine.
//
// ATen sends float products on the CPU to MKL, which takes its AVX2 path on processors of other makers; oneDNN, which
// torch carries too, is twice as fast there and no faster elsewhere. Which is taken hangs on sizes, types, threads and
// the processor alone, never on a clock: two runs multiply alike. Everything but float products on
// the CPU is ATen's (but for bfloat16 with a bias, where it has instructions for it), as are all products under
// torch.use_deterministic_algorithms, whose bits are those of eager. Where oneDNN cannot win by twice the vector width
// (AVX2 alone, Zen 4, Intel's own) packed_product.h takes shapes by a rule; those of bfloat16 on Zen 4 and where the
// processor has no fast instructions for them. Not here: batched products, convolutions (ATen's are oneDNN's already).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "ortmodule/export.h"
#include "products/sgemm.h"

namespace ortmodule {

enum class MatmulProvider { kAuto, kAten, kOneDnn };

// "auto", "aten" or "onednn"; throws kInvalidArgument for another name, and for onednn where torch lacks it.
MatmulProvider matmul_provider(const std::string& name);

// What the products of this thread may use while the scope lives.
class MatmulScope {
 public:
  explicit MatmulScope(MatmulProvider provider);
  ~MatmulScope();
  MatmulScope(const MatmulScope&) = delete;
  MatmulScope& operator=(const MatmulScope&) = delete;

 private:
  MatmulProvider outer_;
};

// a [..., K] times w transposed, w [N, K], plus bias [N] where defined: [..., N].
at::Tensor linear_product(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias);
// a [M, K] times b [K, N].
at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b);
// The same with a [K, M]: what a weight's gradient is.
at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b);

// The gradients of y = x w^T + b by x [M, K], w [N, K] and b [N] from dy [M, N], those that are wanted: dx needs w, dw
// needs x.
LinearGrads linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> wanted);

// What multiplies on this processor and why, a line per type.
ORTMODULE_API std::string matmul_choices();

}  // namespace ortmodule

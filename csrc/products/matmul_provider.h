// Matrix products by the kernel that the table of choice.h names for their sizes, types, threads and processor.
//
// Everything but float products on the CPU is ATen's (but for bfloat16, as the table says), as are all products under
// torch.use_deterministic_algorithms, whose bits are those of eager. Not here: batched products, convolutions (ATen's
// are oneDNN's already).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>

#include "ortmodule/export.h"
#include "products/choice.h"
#include "products/constant_factor.h"
#include "products/sgemm.h"

namespace ortmodule {

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

// Whether kernels have to give the bits that torch's own give under torch.use_deterministic_algorithms: it is asked for
// of the process, by torch's flag, or of what this thread runs.
bool deterministic_compute();

// Asks for it while the scope lives; false: as it is.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on);
  ~DeterministicScope();
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  const bool before_;
};

// a [..., K] times w transposed, w [N, K], plus bias [N] where defined: [..., N]. `constant`: of w; null where it may
// change.
at::Tensor linear_product(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias,
                          ConstantFactor* constant = nullptr);
// a [M, K] times b [K, N]. `constant`: of b.
at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, ConstantFactor* constant = nullptr);
// The same with a [K, M]: what a weight's gradient is.
at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b);

// The gradients of y = x w^T + b by x [M, K], w [N, K] and b [N] from dy [M, N], those that are wanted: dx needs w, dw
// needs x.
LinearGrads linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> wanted);

// What multiplies on this processor and why, a line per type.
ORTMODULE_API std::string matmul_choices();

}  // namespace ortmodule

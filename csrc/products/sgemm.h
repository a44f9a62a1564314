// Float products straight through torch's own BLAS, or through packed_product.h where that is the better one.
//
// at::mm and at::linear find out about types, layouts, aliases and names before they call the BLAS: some microseconds,
// more than the product itself where a layer is narrow. Only *_kernel.cpp files include this header. Not here: which
// kernel a product goes to (choice.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

class PackedFactor;

// Each is undefined where it does not apply: operands that are not float matrices on the CPU that a BLAS can read in
// place, a bias that is not a contiguous row, a torch whose library exports no BLAS. `packed`: by our own
// packed_product, of whose kind they must be, or bfloat16 matrices and a bias of the same type; the bits are its own.

// a [M, K] times b [K, N]: contiguous [M, N], with at::mm's bits.
at::Tensor blas_product(const at::Tensor& a, const at::Tensor& b, bool packed);
// The same with a [K, M], without a view of its transpose.
at::Tensor blas_transposed_product(const at::Tensor& a, const at::Tensor& b, bool packed);
// a [..., K] times w transposed, w [N, K], plus bias [N] where defined: contiguous [..., N], with at::linear's bits
// where it is not taken in strips: few rows by many columns, where a BLAS reads w badly in one call.
at::Tensor blas_linear(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias, bool packed);
// a [..., K] times the panels of b [K, N], plus bias.
at::Tensor blas_linear(const at::Tensor& a, const PackedFactor& b, const at::Tensor& bias);

// The gradients of y = x w^T + b by x [M, K], w [N, K] and b [N] from dy [M, N], on all threads at once, which meet
// once or twice. Where there are many rows beside N and K each thread computes those of a part of the rows; else half
// of them compute that of x, the others those of w and b. False where that does not apply: matrices that blas_product
// refuses, an odd number of threads and few rows.
struct LinearGrads {
  at::Tensor dx, dw, db;
};
bool blas_linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, bool wants_db, bool packed,
                       LinearGrads& out);

}  // namespace ortmodule

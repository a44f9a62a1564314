#include "ops/blas.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "ops/column_sum.h"
#include "ops/conversion.h"
#include "ops/packed_product.h"
#include "ops/pair_rate.h"
#include "ops/small_tensor.h"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#define ORTMODULE_HAS_DLFCN
#endif

namespace ortmodule {
namespace {

using Sgemm = void(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                   const float*, const int*, const float*, float*, const int*);

// In the library that ATen lies in and not in the whole process: other packages bring a BLAS of their own, with threads
// of its own or wider integers.
Sgemm* find_sgemm() {
#ifdef ORTMODULE_HAS_DLFCN
  Dl_info library;
  if (!at::hasMKL() || !dladdr(reinterpret_cast<void*>(&at::globalContext), &library)) return nullptr;
  void* handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return handle ? reinterpret_cast<Sgemm*>(dlsym(handle, "sgemm_")) : nullptr;
#else
  return nullptr;
#endif
}

// A matrix as a BLAS sees it: rows of unit stride, or columns.
template <class T>
struct MatrixOf {
  const T* data = nullptr;
  int leading = 0;
  bool by_rows = true;

  MatrixOf from_row(int64_t i) const { return {data + i * (by_rows ? leading : 1), leading, by_rows}; }
  Strided<T> matrix() const { return {data, by_rows ? leading : 1, by_rows ? 1 : leading}; }
};
using Operand = MatrixOf<float>;

bool plain(const at::Tensor& t, at::ScalarType type = at::kFloat) {
  return t.scalar_type() == type && t.is_cpu() && t.layout() == at::kStrided && !t.is_neg() && t.numel() > 0;
}

bool fits(int64_t n) { return n <= INT32_MAX; }

template <class T>
bool read(const T* data, int64_t rows, int64_t columns, int64_t row, int64_t column, MatrixOf<T>& out) {
  if (column == 1 && (row >= columns || rows == 1)) {
    out = {data, static_cast<int>(rows == 1 ? columns : row), true};
    return fits(row);
  }
  if (row == 1 && (column >= rows || columns == 1)) {
    out = {data, static_cast<int>(columns == 1 ? rows : column), false};
    return fits(column);
  }
  return false;
}

// Measured with MKL on AVX2: strips gain 1.2 to 1.7 times up to 256 rows, and nothing beyond.
constexpr int64_t kFlatRows = 256, kFlatColumns = 2048, kStripColumns = 512;

// c[m, n] = a b, or c += a b; the rows of c lie `stride` apart. A BLAS counts by columns: it computes c transposed.
void multiply(Sgemm* sgemm, int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float* c, bool add,
              int64_t stride) {
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), depth = static_cast<int>(k);
  const int leading = static_cast<int>(stride);
  const float one = 1, beta = add ? 1 : 0;
  sgemm(b.by_rows ? "N" : "T", a.by_rows ? "N" : "T", &columns, &rows, &depth, &one, b.data, &b.leading, a.data,
        &a.leading, &beta, c, &leading);
}

Sgemm* sgemm() {
  static Sgemm* const found = find_sgemm();
  return found;
}

// c[m, n] = a b on the way asked for; the rows of c lie `stride` apart.
void multiply(bool packed, int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float* c,
              int64_t stride) {
  if (packed)
    packed_product(m, n, k, a.matrix(), b.matrix(), nullptr, 0, c, stride);
  else
    multiply(sgemm(), m, n, k, a, b, c, false, stride);
}

// The place of one of `parts` parts of n, of about one size; they begin at multiples of 32, for column_sums.
std::pair<int64_t, int64_t> part_of(int64_t n, int64_t part, int64_t parts) {
  const int64_t blocks = (n + 31) / 32;
  return {std::min(n, blocks * part / parts * 32), std::min(n, blocks * (part + 1) / parts * 32)};
}

const uint16_t* bits(const at::Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); }

// The product of bfloat16 matrices, with the sizes of the result.
at::Tensor bfloat16_product(const at::Tensor& a, int64_t m, int64_t a_row, int64_t a_column, const at::Tensor& b,
                            int64_t n, int64_t b_row, int64_t b_column, int64_t k, const at::Tensor& bias,
                            at::IntArrayRef sizes) {
  MatrixOf<uint16_t> left, right;
  if (!fits(m) || !fits(n) || !fits(k) || !read(bits(a), m, k, a_row, a_column, left) ||
      !read(bits(b), k, n, b_row, b_column, right))
    return {};
  std::vector<float> start(bias.defined() ? n : 0);
  if (bias.defined()) load_elements(at::kBFloat16, bias.const_data_ptr(), 1, start.data(), n);
  at::Tensor c = at::empty(sizes, at::TensorOptions(at::kBFloat16));
  packed_product(m, n, k, left.matrix(), right.matrix(), bias.defined() ? start.data() : nullptr,
                 static_cast<uint16_t*>(c.mutable_data_ptr()), n, pairs_pay());
  return c;
}

// `rows`: which axis of a counts the rows of the result.
at::Tensor product(const at::Tensor& a, int rows, const at::Tensor& b, bool packed) {
  if ((!packed && !sgemm()) || a.dim() != 2 || b.dim() != 2 || a.size(1 - rows) != b.size(0)) return {};
  const int64_t m = a.size(rows), k = b.size(0), n = b.size(1);
  if (packed && plain(a, at::kBFloat16) && plain(b, at::kBFloat16))
    return bfloat16_product(a, m, a.stride(rows), a.stride(1 - rows), b, n, b.stride(0), b.stride(1), k, {}, {m, n});
  if (!plain(a) || !plain(b)) return {};
  Operand left, right;
  if (!fits(m) || !fits(n) || !fits(k) ||
      !read(a.const_data_ptr<float>(), m, k, a.stride(rows), a.stride(1 - rows), left) ||
      !read(b.const_data_ptr<float>(), k, n, b.stride(0), b.stride(1), right))
    return {};
  at::Tensor c = make_float({m, n});
  multiply(packed, m, n, k, left, right, c.mutable_data_ptr<float>(), n);
  return c;
}

}  // namespace

at::Tensor blas_product(const at::Tensor& a, const at::Tensor& b, bool packed) { return product(a, 0, b, packed); }

at::Tensor blas_transposed_product(const at::Tensor& a, const at::Tensor& b, bool packed) {
  return product(a, 1, b, packed);
}

bool blas_linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, bool wants_db, bool packed,
                       LinearGrads& out) {
  const int64_t threads = at::get_num_threads(), half = threads / 2, m = dy.size(0), n = dy.size(1), k = x.size(1);
  if ((!packed && !sgemm()) || half < 1 || threads % 2 != 0 || at::in_parallel_region()) return false;
  if (!plain(dy) || !plain(x) || !plain(w) || !fits(m) || !fits(n) || !fits(k)) return false;
  if (wants_db && dy.stride(1) != 1) return false;
  const float* dy_data = dy.const_data_ptr<float>();
  const float* x_data = x.const_data_ptr<float>();
  Operand rows, columns, inputs, weights;  // dy, dy transposed, x, w
  if (!read(dy_data, m, n, dy.stride(0), dy.stride(1), rows) ||
      !read(dy_data, n, m, dy.stride(1), dy.stride(0), columns) ||
      !read(x_data, m, k, x.stride(0), x.stride(1), inputs) ||
      !read(w.const_data_ptr<float>(), n, k, w.stride(0), w.stride(1), weights))
    return false;
  out.dx = make_float({m, k});
  out.dw = make_float({n, k});
  if (wants_db) out.db = make_float({n});
  float *dx = out.dx.mutable_data_ptr<float>(), *dw = out.dw.mutable_data_ptr<float>();
  float* const db = wants_db ? out.db.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, 2 * half, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const bool of_x = part < half;
      const auto [begin, end] = part_of(of_x ? m : n, part % half, half);
      if (begin == end) continue;
      if (of_x) {
        multiply(packed, end - begin, k, n, rows.from_row(begin), weights, dx + begin * k, k);
      } else {
        multiply(packed, end - begin, k, m, columns.from_row(begin), inputs, dw + begin * k, k);
        if (db) column_sums(dy_data + begin, m, dy.stride(0), end - begin, db + begin);
      }
    }
  });
  return true;
}

bool is_flat_product(int64_t m, int64_t n) { return m <= kFlatRows && n >= kFlatColumns; }

at::Tensor blas_linear(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias, bool packed) {
  const at::ScalarType type = packed && a.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  if ((!packed && !sgemm()) || a.dim() < 1 || w.dim() != 2 || !plain(a, type) || !plain(w, type) ||
      a.size(-1) != w.size(1))
    return {};
  if (!(a.dim() == 2 || a.is_contiguous())) return {};
  if (bias.defined() && !(plain(bias, type) && bias.dim() == 1 && bias.is_contiguous() && bias.size(0) == w.size(0)))
    return {};
  const int64_t n = w.size(0), k = w.size(1), m = a.numel() / k, a_row = a.dim() == 2 ? a.stride(0) : k;
  c10::DimVector sizes(a.sizes());
  sizes.back() = n;
  if (type == at::kBFloat16)
    return bfloat16_product(a, m, a_row, a.stride(-1), w, n, w.stride(1), w.stride(0), k, bias, sizes);
  Operand left, right;
  if (!fits(m) || !fits(n) || !fits(k) || !read(a.const_data_ptr<float>(), m, k, a_row, a.stride(-1), left) ||
      !read(w.const_data_ptr<float>(), k, n, w.stride(1), w.stride(0), right))
    return {};
  at::Tensor c = make_float(sizes);
  float* out = c.mutable_data_ptr<float>();
  if (packed) {
    packed_product(m, n, k, left.matrix(), right.matrix(), bias.defined() ? bias.const_data_ptr<float>() : nullptr, 0,
                   out, n);
    return c;
  }
  if (bias.defined()) {
    const float* row = bias.const_data_ptr<float>();
    for (int64_t i = 0; i < m; ++i) std::copy_n(row, n, out + i * n);
  }
  const int64_t strip = is_flat_product(m, n) ? kStripColumns * at::get_num_threads() : n;
  for (int64_t begin = 0; begin < n; begin += strip) {
    multiply(sgemm(), m, std::min(strip, n - begin), k, left, right, out + begin, bias.defined(), n);
    right.data += strip * (right.by_rows ? 1 : right.leading);
  }
  return c;
}

}  // namespace ortmodule

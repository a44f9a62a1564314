#include "products/sgemm.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/processor.h"
#include "kernels/small_tensor.h"
#include "products/column_sum.h"
#include "products/packed_product.h"

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

  MatrixOf from(int64_t row, int64_t column) const {
    return {data + (by_rows ? row * leading + column : row + column * leading), leading, by_rows};
  }
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

ORTMODULE_SIMD void add_to(float* sums, const float* terms, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] += terms[i];
}

// The rows that by_rows gives to a thread, at least: sums over fewer are not worth their results.
constexpr int64_t kLeastRows = 32;

// The gradients of a linear layer from its operands as a BLAS sees them.
struct GradientProducts {
  bool packed;
  int64_t m, n, k, dy_row;
  const float* dy_data = nullptr;
  Operand dy{}, dy_transposed{}, x{}, w{};

  void of_x(int64_t begin, int64_t end, float* dx) const {
    multiply(packed, end - begin, k, n, dy.from(begin, 0), w, dx + begin * k, k);
  }
  // What `rows` rows from `row` on add to dw and db at columns [begin, end) of dy.
  void of_w(int64_t row, int64_t rows, int64_t begin, int64_t end, float* dw, float* db) const {
    multiply(packed, end - begin, k, rows, dy_transposed.from(begin, row), x.from(row, 0), dw + begin * k, k);
    if (db) column_sums(dy_data + row * dy_row + begin, rows, dy_row, end - begin, db + begin);
  }

  // Each thread takes a part of the rows, as the layers before and after do, so that it reads what it wrote itself; in
  // the end the threads add up what they have for dw and db.
  void by_rows(int64_t threads, float* dx, float* dw, float* db) const {
    const int64_t share = (m + threads - 1) / threads, size = n * k, stride = size + n;
    const at::Tensor parts = make_float({(threads - 1) * stride});
    float* const others = parts.mutable_data_ptr<float>();
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const int64_t begin = std::min(m, t * share), end = std::min(m, begin + share);
        float* const part = others + (t - 1) * stride;
        of_x(begin, end, dx);
        of_w(begin, end - begin, 0, n, t ? part : dw, t && db ? part + size : db);
      }
    });
    at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
      for (int64_t t = 0; t < threads - 1; ++t) {
        const float* const part = others + t * stride;
        const auto add = [&](float* sums, const float* terms, int64_t count) {
          const int64_t begin = count * first / threads;
          add_to(sums + begin, terms + begin, count * last / threads - begin);
        };
        add(dw, part, size);
        if (db) add(db, part + size, n);
      }
    });
  }

  // `half` threads compute dx, as many the others.
  void side_by_side(int64_t half, float* dx, float* dw, float* db) const {
    at::parallel_for(0, 2 * half, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const bool for_x = part < half;
        const auto [begin, end] = part_of(for_x ? m : n, part % half, half);
        if (begin == end) continue;
        for_x ? of_x(begin, end, dx) : of_w(0, m, begin, end, dw, db);
      }
    });
  }
};

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
  const int64_t threads = at::get_num_threads(), m = dy.size(0), n = dy.size(1), k = x.size(1);
  const bool by_rows = m >= kLeastRows * threads && m * (n + k) >= 2 * n * k;
  if ((!packed && !sgemm()) || threads < 2 || at::in_parallel_region() || (!by_rows && threads % 2 != 0)) return false;
  if (!plain(dy) || !plain(x) || !plain(w) || !fits(m) || !fits(n) || !fits(k)) return false;
  if (wants_db && dy.stride(1) != 1) return false;
  GradientProducts products{.packed = packed, .m = m, .n = n, .k = k, .dy_row = dy.stride(0)};
  products.dy_data = dy.const_data_ptr<float>();
  if (!read(products.dy_data, m, n, dy.stride(0), dy.stride(1), products.dy) ||
      !read(products.dy_data, n, m, dy.stride(1), dy.stride(0), products.dy_transposed) ||
      !read(x.const_data_ptr<float>(), m, k, x.stride(0), x.stride(1), products.x) ||
      !read(w.const_data_ptr<float>(), n, k, w.stride(0), w.stride(1), products.w))
    return false;
  out.dx = make_float({m, k});
  out.dw = make_float({n, k});
  if (wants_db) out.db = make_float({n});
  float *const dx = out.dx.mutable_data_ptr<float>(), *const dw = out.dw.mutable_data_ptr<float>();
  float* const db = wants_db ? out.db.mutable_data_ptr<float>() : nullptr;
  by_rows ? products.by_rows(threads, dx, dw, db) : products.side_by_side(threads / 2, dx, dw, db);
  return true;
}

at::Tensor blas_linear(const at::Tensor& a, const PackedFactor& b, const at::Tensor& bias) {
  if (!plain(a) || a.dim() < 1 || a.size(-1) != b.k() || !(a.dim() == 2 || a.is_contiguous())) return {};
  if (bias.defined() && !(plain(bias) && bias.dim() == 1 && bias.is_contiguous() && bias.size(0) == b.n())) return {};
  c10::DimVector sizes(a.sizes());
  sizes.back() = b.n();
  at::Tensor c = make_float(sizes);
  packed_product(a.numel() / b.k(), {a.const_data_ptr<float>(), a.dim() == 2 ? a.stride(0) : b.k(), a.stride(-1)}, b,
                 bias.defined() ? bias.const_data_ptr<float>() : nullptr, 0, c.mutable_data_ptr<float>(), b.n());
  return c;
}

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
  const int64_t strip = m <= kFlatRows && n >= kFlatColumns ? kStripColumns * at::get_num_threads() : n;
  for (int64_t begin = 0; begin < n; begin += strip) {
    multiply(sgemm(), m, std::min(strip, n - begin), k, left, right, out + begin, bias.defined(), n);
    right.data += strip * (right.by_rows ? 1 : right.leading);
  }
  return c;
}

}  // namespace ortmodule

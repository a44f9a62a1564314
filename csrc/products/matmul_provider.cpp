#include "products/matmul_provider.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "kernels/processor.h"
#include "products/column_sum.h"
#include "products/packed_product.h"

namespace ortmodule {
namespace {

// What the products of a thread have to do with.
struct Asked {
  MatmulProvider provider = MatmulProvider::kAuto;
  bool deterministic = false;
};
constinit thread_local Asked asked{};

std::optional<c10::OperatorHandle> find_onednn() {
  if (!at::globalContext().userEnabledMkldnn() || !at::Context::hasMKLDNN()) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

const std::optional<c10::OperatorHandle>& onednn() {
  static const std::optional<c10::OperatorHandle> found = find_onednn();
  return found;
}

at::Tensor by_onednn(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias) {
  c10::Stack stack{a,
                   w,
                   bias.defined() ? c10::IValue(bias) : c10::IValue(),
                   "none",
                   c10::List<std::optional<at::Scalar>>(),
                   c10::IValue(std::string())};
  onednn()->callBoxed(stack);
  return stack.back().toTensor();
}

at::Tensor by_aten(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias) {
  return bias.defined() ? at::linear(a, w, bias) : at::linear(a, w);
}

at::Tensor by_panels(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, ConstantFactor& constant) {
  const PackedFactor* const panels = constant.panels(b);
  return panels ? blas_linear(a, *panels, bias) : at::Tensor();
}

const ProductMachine& machine() {
  static const ProductMachine found{has_packed_product(), is_intel(),           has_avx512(),        has_split_avx512(),
                                    has_pairs(),          has_bfloat16_tiles(), onednn().has_value()};
  return found;
}

ProductFacts::Type type_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) return ProductFacts::Type::kOther;
  if (a.scalar_type() == at::kFloat) return ProductFacts::Type::kFloat;
  return a.scalar_type() == at::kBFloat16 ? ProductFacts::Type::kBFloat16 : ProductFacts::Type::kOther;
}

ProductFacts facts(int64_t m, int64_t n, int64_t k, const at::Tensor& a, const at::Tensor& b) {
  ProductFacts out;
  out.m = m;
  out.n = n;
  out.k = k;
  out.type = type_of(a, b);
  out.on_cpu = a.is_cpu();
  out.threads = at::get_num_threads();
  const Asked mine = asked;
  out.deterministic = mine.deterministic || at::globalContext().deterministicAlgorithms();
  out.provider = mine.provider;
  return out;
}

// Goes down the table until a kernel takes the operands; the last one takes all.
template <typename Multiply>
at::Tensor by_table(const ProductFacts& product, Multiply multiply) {
  const ProductRow* row = nullptr;
  for (;;) {
    row = &choose_product(product, machine(), row);
    if (at::Tensor out = multiply(row->kernel); out.defined()) return out;
  }
}

}  // namespace

MatmulProvider matmul_provider(const std::string& name) {
  if (name == "auto") return MatmulProvider::kAuto;
  if (name == "aten") return MatmulProvider::kAten;
  ORTMODULE_CHECK_ARG(name == "onednn", "the matmul provider should be 'auto', 'aten' or 'onednn', got '", name, "'");
  ORTMODULE_CHECK_ARG(onednn(), "this torch has no oneDNN; choose the matmul provider 'auto' or 'aten'");
  return MatmulProvider::kOneDnn;
}

MatmulScope::MatmulScope(MatmulProvider provider) : outer_(std::exchange(asked.provider, provider)) {}
MatmulScope::~MatmulScope() { asked.provider = outer_; }

bool deterministic_compute() { return asked.deterministic || at::globalContext().deterministicAlgorithms(); }

DeterministicScope::DeterministicScope(bool on) : before_(asked.deterministic) { asked.deterministic |= on; }
DeterministicScope::~DeterministicScope() { asked.deterministic = before_; }

at::Tensor linear_product(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias, ConstantFactor* constant) {
  const int64_t k = w.size(-1), n = w.numel() / std::max<int64_t>(k, 1), m = a.numel() / std::max<int64_t>(k, 1);
  ProductFacts product = facts(m, n, k, a, w);
  product.linear = w.dim() == 2;
  product.constant = constant && product.linear;
  product.bias = bias.defined();
  product.plain_bias =
      bias.defined() && bias.dim() == 1 && bias.scalar_type() == a.scalar_type() && bias.is_contiguous();
  return by_table(product, [&](ProductKernel kernel) {
    if (kernel == ProductKernel::kOneDnn) return by_onednn(a, w, bias);
    if (kernel == ProductKernel::kAten) return by_aten(a, w, bias);
    if (kernel == ProductKernel::kPackedOnce) return by_panels(a, w.t(), bias, *constant);
    return blas_linear(a, w, bias, kernel == ProductKernel::kPacked);
  });
}

at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, ConstantFactor* constant) {
  ProductFacts product = facts(a.size(0), b.size(1), a.size(1), a, b);
  product.constant = constant != nullptr;
  product.transposed = a.stride(1) != 1;
  return by_table(product, [&](ProductKernel kernel) {
    if (kernel == ProductKernel::kOneDnn) return by_onednn(a, b.t(), {});
    if (kernel == ProductKernel::kAten) return at::mm(a, b);
    if (kernel == ProductKernel::kPackedOnce) return by_panels(a, b, {}, *constant);
    return blas_product(a, b, kernel == ProductKernel::kPacked);
  });
}

at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b) {
  ProductFacts product = facts(a.size(1), b.size(1), a.size(0), a, b);
  product.transposed = a.stride(1) == 1;
  return by_table(product, [&](ProductKernel kernel) {
    if (kernel == ProductKernel::kOneDnn) return by_onednn(a.t(), b.t(), {});
    if (kernel == ProductKernel::kAten) return at::mm(a.t(), b);
    return blas_transposed_product(a, b, kernel == ProductKernel::kPacked);
  });
}

LinearGrads linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> wanted) {
  LinearGrads out;
  const auto [dx, dw, db] = wanted;
  if (dx && dw && dy.is_cpu() && dy.scalar_type() == at::kFloat) {
    const int64_t m = dy.size(0), n = dy.size(1), k = x.size(1);
    if (shares_threads(facts(m, n, k, dy, x))) {
      const bool packed = choose_product(facts(m, k, n, dy, w), machine()).kernel == ProductKernel::kPacked;
      if (blas_linear_grads(dy, x, w, db, packed, out)) return out;
    }
  }
  if (dx) out.dx = matrix_product(dy, w);
  if (dw) out.dw = transposed_product(dy, x);
  if (db) out.db = column_sum(dy);
  return out;
}

std::string matmul_choices() {
  std::string out = "float: ";
  if (has_packed_product())
    out += std::string("ATen (MKL) and packed tiles, ") + (is_intel()           ? "Intel"
                                                           : has_split_avx512() ? "AVX-512 in halves"
                                                           : has_avx512()       ? "AVX-512 that MKL does not use"
                                                                                : "no AVX-512");
  else
    out += "ATen, no AVX2";
  out += "\nbfloat16: ";
  out += has_bfloat16_tiles() ? "ATen (oneDNN), the processor has tiles"
         : pairs_pay()        ? "in pairs, the processor multiplies them at the rate of floats"
         : has_pairs()        ? "widened to floats, the processor multiplies pairs slowly"
                              : "widened to floats, the processor has no pairs";
  return out;
}

}  // namespace ortmodule

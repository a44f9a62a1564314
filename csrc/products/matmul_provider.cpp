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

// Below this many multiplications oneDNN's cost per call (some microseconds) outweighs any gain.
constexpr int64_t kSmallProduct = int64_t{1} << 21;
// Measured on two threads: shorter pairs gain an eighth, at the upper end nothing is left.
constexpr int64_t kLeastPair = int64_t{1} << 16, kLargestPair = int64_t{1} << 30, kMostPairThreads = 8;

thread_local MatmulProvider current = MatmulProvider::kAuto;

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
  if (w.dim() == 2 && w.size(1) > 0 && is_flat_product(a.numel() / w.size(1), w.size(0)))
    if (at::Tensor out = blas_linear(a, w, bias, false); out.defined()) return out;
  return bias.defined() ? at::linear(a, w, bias) : at::linear(a, w);
}

// Whether oneDNN is the faster one for all but tiny products: a rule and no measurement, so that two runs multiply
// alike. MKL takes its AVX2 path on processors of other makers; where those have AVX-512 of full width oneDNN needs
// half the time for every shape measured. Zen 4 splits such vectors in two, and without them both have the same
// instructions: what oneDNN gains there is within an eighth, either way.
bool onednn_gains_here() {
  static const bool gains = has_full_avx512() && !is_intel();
  return gains;
}

// How a product a [m, k] times b [k, n] goes past the dispatcher.
enum class Direct { kNo, kBlas, kPacked };

Direct direct_way(int64_t m, int64_t n, int64_t k, ProductTraits traits, at::ScalarType type) {
  if (current == MatmulProvider::kOneDnn) return Direct::kNo;
  if (current == MatmulProvider::kAuto && !at::globalContext().deterministicAlgorithms()) {
    const int threads = at::get_num_threads();
    if (type == at::kBFloat16 ? packed_bfloat16_is_best(m, n, k, threads)
                              : packed_product_is_best(m, n, k, traits, threads))
      return Direct::kPacked;
  }
  return m * n * k < kSmallProduct ? Direct::kBlas : Direct::kNo;
}

// Whether the products of a linear layer's gradients, of [m, n, k] in some order, should share the threads as
// blas_linear_grads does: where they are so short that threads meeting, and reading what others wrote, is much of their
// time.
bool is_small_pair(int64_t m, int64_t n, int64_t k) {
  if (current == MatmulProvider::kOneDnn || at::globalContext().deterministicAlgorithms()) return false;
  const int64_t size = m * n * k, threads = at::get_num_threads();
  if (threads > kMostPairThreads || std::min(m, n) < 16 * threads) return false;
  if (current == MatmulProvider::kAuto && size >= kSmallProduct && onednn() && onednn_gains_here()) return false;
  return size >= kLeastPair && size <= kLargestPair;
}

bool by_onednn_is_best(const at::Tensor& a, const at::Tensor& w) {
  if (current == MatmulProvider::kAten || a.scalar_type() != at::kFloat || !a.is_cpu() || w.scalar_type() != at::kFloat)
    return false;
  if (a.numel() == 0 || w.numel() == 0 || !onednn()) return false;
  if (current == MatmulProvider::kOneDnn) return true;
  if (a.numel() * w.size(0) < kSmallProduct || at::globalContext().deterministicAlgorithms()) return false;
  return onednn_gains_here();
}

// Where the processor multiplies bfloat16, ATen's products of it are oneDNN's, but a bias is copied over the result
// first and added to by a slower kernel. oneDNN's own linear layer adds it to the sums, for the same bits.
bool adds_bias_in_onednn(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias) {
  return bias.defined() && current != MatmulProvider::kAten && a.scalar_type() == at::kBFloat16 && a.is_cpu() &&
         w.dim() == 2 && w.scalar_type() == at::kBFloat16 && bias.dim() == 1 && bias.scalar_type() == at::kBFloat16 &&
         bias.is_contiguous() && a.numel() * w.size(0) >= kSmallProduct && has_pairs() && onednn() &&
         !at::globalContext().deterministicAlgorithms();
}

}  // namespace

MatmulProvider matmul_provider(const std::string& name) {
  if (name == "auto") return MatmulProvider::kAuto;
  if (name == "aten") return MatmulProvider::kAten;
  ORTMODULE_CHECK_ARG(name == "onednn", "the matmul provider should be 'auto', 'aten' or 'onednn', got '", name, "'");
  ORTMODULE_CHECK_ARG(onednn(), "this torch has no oneDNN; choose the matmul provider 'auto' or 'aten'");
  return MatmulProvider::kOneDnn;
}

MatmulScope::MatmulScope(MatmulProvider provider) : outer_(std::exchange(current, provider)) {}
MatmulScope::~MatmulScope() { current = outer_; }

at::Tensor linear_product(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias) {
  const int64_t k = w.size(-1), n = w.numel() / std::max<int64_t>(k, 1), m = a.numel() / std::max<int64_t>(k, 1);
  if (const Direct way = direct_way(m, n, k, {.bias = bias.defined()}, a.scalar_type()); way != Direct::kNo)
    if (at::Tensor out = blas_linear(a, w, bias, way == Direct::kPacked); out.defined()) return out;
  if (adds_bias_in_onednn(a, w, bias)) return by_onednn(a, w, bias);
  return by_onednn_is_best(a, w) ? by_onednn(a, w, bias) : by_aten(a, w, bias);
}

at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b) {
  const ProductTraits traits{.transposed = a.stride(1) != 1};
  if (const Direct way = direct_way(a.size(0), b.size(1), a.size(1), traits, a.scalar_type()); way != Direct::kNo)
    if (at::Tensor out = blas_product(a, b, way == Direct::kPacked); out.defined()) return out;
  const at::Tensor w = b.t();
  return by_onednn_is_best(a, w) ? by_onednn(a, w, {}) : at::mm(a, b);
}

at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b) {
  const ProductTraits traits{.transposed = a.stride(1) == 1};
  if (const Direct way = direct_way(a.size(1), b.size(1), a.size(0), traits, a.scalar_type()); way != Direct::kNo)
    if (at::Tensor out = blas_transposed_product(a, b, way == Direct::kPacked); out.defined()) return out;
  return matrix_product(a.t(), b);
}

LinearGrads linear_grads(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, std::array<bool, 3> wanted) {
  LinearGrads out;
  const auto [dx, dw, db] = wanted;
  if (dx && dw && dy.is_cpu() && dy.scalar_type() == at::kFloat) {
    const int64_t m = dy.size(0), n = dy.size(1), k = x.size(1);
    const bool packed = direct_way(m, k, n, {}, at::kFloat) == Direct::kPacked;
    if (is_small_pair(m, n, k) && blas_linear_grads(dy, x, w, db, packed, out)) return out;
  }
  if (dx) out.dx = matrix_product(dy, w);
  if (dw) out.dw = transposed_product(dy, x);
  if (db) out.db = column_sum(dy);
  return out;
}

std::string matmul_choices() {
  std::string out = "float: ";
  if (onednn() && onednn_gains_here())
    out += "oneDNN, AVX-512 of full width beside an MKL that does not use it";
  else if (has_packed_product())
    out += std::string("ATen (MKL) and packed tiles, ") + (is_intel()           ? "Intel"
                                                           : has_split_avx512() ? "AVX-512 in halves"
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

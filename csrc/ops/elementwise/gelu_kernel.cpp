// Kernels of Gelu, BiasGelu, FastGelu and GeluGrad: vectorized loops of our own for plain floats on the CPU, also those
// of 16 bits, which are computed in float a block at a time; ATen for everything else.
//
// ATen's loops take tanh and erf from Sleef, at some 4 ns an element with AVX2. One exponential does for either:
// 1 + tanh(u) is 2 / (1 + exp(-2u)), without the cancellation for negative u, and erf has a short formula around
// exp(-x^2), the one that fused kernels use. Gradient kernels write over dY where it is theirs to take.
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/cpu_simd.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

constexpr float kRootHalf = 0.70710678118654752f, kBellHeight = 0.39894228040143268f;
constexpr float kTanhScale = 0.79788456080286536f, kTanhCubic = 0.044715f;
constexpr float kLargestExponent = 87.0f;
constexpr int64_t kGrain = 4096;  // elements for a thread: some microseconds

// `value` where `keep`, else 0, without a branch.
ORTMODULE_INLINE float if_set(bool keep, float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & -static_cast<uint32_t>(keep));
}

// The factor of x in its tanh form: s = (1 + tanh(u)) / 2, and e = exp(-2u), with which 1 - s is s e.
struct Gate {
  float s, e;
};
ORTMODULE_INLINE Gate tanh_gate(float x) {
  const float exponent = -2.0f * kTanhScale * (x + kTanhCubic * (x * x * x));
  const bool fits = !(exponent >= kLargestExponent);
  const float e = simd_exp(if_set(fits, exponent));
  return {if_set(fits, 1.0f / (1.0f + e)), e};
}

// The distribution function of the normal distribution by Abramowitz and Stegun 7.1.26 (error below 1.5e-7); `bell` is
// exp(-x^2 / 2).
ORTMODULE_INLINE float normal_cdf(float x, float bell) {
  const float size = std::fabs(x) * kRootHalf, t = 1.0f / (0.3275911f * size + 1.0f);
  const float r = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
  const float tail = 0.5f * r * t * bell;
  return if_set(x < 0, tail) + if_set(!(x < 0), 1.0f - tail);
}

// "simd": x and y may be one tensor, which the compiler would otherwise read one by one.
ORTMODULE_SIMD void gelu_tanh(const float* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * tanh_gate(x[i]).s;
}
// As ATen's own formula it has the infinity of +inf, no number for -inf, and the largest number for itself; oneDNN's,
// which eager takes where it can, differs there from processor to processor.
ORTMODULE_SIMD void gelu_erf(const float* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_cdf(x[i], simd_exp(-0.5f * x[i] * x[i]));
}
ORTMODULE_SIMD void gelu_tanh_grad(const float* dy, const float* x, float* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Gate g = tanh_gate(x[i]);
    const float slope = 2.0f * kTanhScale * (1.0f + 3.0f * kTanhCubic * x[i] * x[i]);
    // The product that is zero far out comes first: the slope overflows there.
    dx[i] = dy[i] * (g.s + x[i] * (g.s * (g.s * g.e)) * slope);
  }
}
ORTMODULE_SIMD void gelu_erf_grad(const float* dy, const float* x, float* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float bell = simd_exp(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * (normal_cdf(x[i], bell) + x[i] * (bell * kBellHeight));
  }
}

bool plain(const at::Tensor& t) {
  return t.is_cpu() &&
         (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf) &&
         t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg();
}

// Elements of a plain tensor as floats: where they are, or converted in a buffer.
class Block {
 public:
  static constexpr int64_t kElements = 512;

  explicit Block(const at::Tensor& t) : type_(t.scalar_type()), size_(t.element_size()) {}

  const float* load(const void* data, int64_t begin, int64_t n) {
    const char* from = static_cast<const char*>(data) + begin * size_;
    if (type_ == at::kFloat) return reinterpret_cast<const float*>(from);
    load_elements(type_, from, 1, buffer_.data(), n);
    return buffer_.data();
  }
  // Where to write elements that `store` takes to `data`.
  float* place(void* data, int64_t begin) {
    return type_ == at::kFloat ? static_cast<float*>(data) + begin : buffer_.data();
  }
  void store(void* data, int64_t begin, int64_t n) const {
    if (type_ != at::kFloat) store_elements(type_, buffer_.data(), static_cast<char*>(data) + begin * size_, n);
  }

 private:
  at::ScalarType type_;
  int64_t size_;
  std::array<float, kElements> buffer_;
};

// Calls `body(begin, n)` for blocks that together are 0 .. count, in threads.
template <typename Body>
void for_blocks(int64_t count, const Body& body) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += Block::kElements) body(begin, std::min(Block::kElements, end - begin));
  });
}

// The attribute's two values.
bool is_tanh(const Node& node) {
  const std::string text = node.get_string("approximate", "none");
  ORTMODULE_CHECK_GRAPH(text == "none" || text == "tanh", "[", node.op(),
                        "] approximate should be 'none' or 'tanh', got '", text, "' (", node.describe(), ")");
  return text == "tanh";
}

Kernel make_gelu(const Node& node) {
  return [tanh = is_tanh(node)](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    if (!plain(x)) return c.out(0, at::gelu(x, tanh ? "tanh" : "none"));
    at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x);
    const void* from = x.const_data_ptr();
    void* to = y.mutable_data_ptr();
    for_blocks(x.numel(), [&](int64_t begin, int64_t n) {
      Block in(x), out(y);
      (tanh ? gelu_tanh : gelu_erf)(in.load(from, begin, n), out.place(to, begin), n);
      out.store(to, begin, n);
    });
    c.out(0, std::move(y));
  };
}

// to[i] = from[i] + bias[(begin + i) % width]
void add_bias(const float* from, const float* bias, int64_t width, int64_t begin, int64_t n, float* to) {
  for (int64_t i = 0; i < n;) {
    const int64_t first = (begin + i) % width, count = std::min(n - i, width - first);
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) to[i + k] = from[i + k] + bias[first + k];
    i += count;
  }
}

// gelu(x + bias), the bias along the last axis: sums of 16 bits are rounded as Add rounds them.
template <bool tanh>
Kernel make_bias_gelu(const Node&) {
  return [](KernelContext& c) {
    const at::Tensor &x = c.in(0), bias = c.in_or_undefined(1);
    const char* how = tanh ? "tanh" : "none";
    const bool along_rows = bias.defined() && plain(bias) && bias.dim() == 1 && x.dim() > 0 &&
                            bias.size(0) == x.size(-1) && bias.scalar_type() == at::kFloat && bias.numel() > 0;
    if (!plain(x) || x.scalar_type() != at::kFloat || !along_rows) {
      const at::Tensor sum = bias.defined() ? at::add(x, bias) : x;
      return c.out(0, at::gelu(sum, how));
    }
    at::Tensor y = c.may_overwrite(0) ? x : at::empty_like(x);
    const auto *from = x.const_data_ptr<float>(), *added = bias.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    for_blocks(x.numel(), [&](int64_t begin, int64_t n) {
      std::array<float, Block::kElements> sums;
      add_bias(from + begin, added, bias.size(0), begin, n, sums.data());
      (tanh ? gelu_tanh : gelu_erf)(sums.data(), to + begin, n);
    });
    c.out(0, std::move(y));
  };
}

Kernel make_gelu_grad(const Node& node) {
  return [tanh = is_tanh(node)](KernelContext& c) {
    const at::Tensor &dy = c.in(0), &x = c.in(1);
    if (!plain(dy) || !plain(x) || dy.scalar_type() != x.scalar_type() || dy.sizes() != x.sizes())
      return c.out(0, at::gelu_backward(dy, x, tanh ? "tanh" : "none"));
    at::Tensor dx = c.may_overwrite(0) ? dy : at::empty_like(dy);
    const void *from = dy.const_data_ptr(), *at_x = x.const_data_ptr();
    void* to = dx.mutable_data_ptr();
    for_blocks(x.numel(), [&](int64_t begin, int64_t n) {
      Block in(dy), point(x), out(dx);
      (tanh ? gelu_tanh_grad : gelu_erf_grad)(in.load(from, begin, n), point.load(at_x, begin, n), out.place(to, begin),
                                              n);
      out.store(to, begin, n);
    });
    c.out(0, std::move(dx));
  };
}

}  // namespace

ORTMODULE_KERNEL("", Gelu, "aten", make_gelu).inplace();
ORTMODULE_KERNEL("com.microsoft", Gelu, "aten", make_bias_gelu<false>).inplace();
ORTMODULE_KERNEL("com.microsoft", FastGelu, "aten", make_bias_gelu<true>).inplace();
ORTMODULE_KERNEL("com.microsoft", BiasGelu, "aten", make_bias_gelu<false>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", GeluGrad, "aten", make_gelu_grad).inplace();

}  // namespace ortmodule

// Kernels of the piecewise activations, ATen's but for Relu of floats. Gradient kernels write over dY where it is
// theirs to take.
#include <ATen/Parallel.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/le.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>

#include <optional>

#include "kernels/cpu_simd.h"
#include "kernels/small_tensor.h"
#include "ops/elementwise/unary_kernel.h"

namespace ortmodule {
namespace {

// Relu and its gradient of floats that lie side by side: ATen's iterator takes longer than a narrow layer's numbers.
// Zeros and what is no number come out as ATen has them.
ORTMODULE_SIMD void no_negatives(const float* x, float* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}
ORTMODULE_SIMD void where_positive(const float* dy, const float* x, float* dx, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dx[i] = x[i] <= 0.0f ? 0.0f : dy[i];
}

constexpr int64_t kGrain = 32768;  // elements that a thread is worth

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat && t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg();
}

// Into `y`, of x's sizes; it may be x.
void relu_into(const at::Tensor& x, const at::Tensor& y) {
  const float* const from = x.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), kGrain,
                   [&](int64_t begin, int64_t end) { no_negatives(from + begin, to + begin, end - begin); });
}

at::Tensor relu(const at::Tensor& x) {
  if (!is_plain(x)) return at::relu(x);
  at::Tensor y = make_float(x.sizes());
  relu_into(x, y);
  return y;
}

at::Tensor& relu_(at::Tensor& x) {
  if (!is_plain(x)) return at::relu_(x);
  relu_into(x, x);
  return x;
}

ORTMODULE_KERNEL("", Relu, "aten", unary_kernel<relu, relu_>).inplace();

// Into `dx`, which may be dy.
void relu_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dx) {
  const float *const gradient = dy.const_data_ptr<float>(), *const from = x.const_data_ptr<float>();
  float* const to = dx.mutable_data_ptr<float>();
  at::parallel_for(0, dy.numel(), kGrain, [&](int64_t begin, int64_t end) {
    where_positive(gradient + begin, from + begin, to + begin, end - begin);
  });
}

bool are_plain(const at::Tensor& dy, const at::Tensor& x) {
  return is_plain(dy) && is_plain(x) && dy.sizes() == x.sizes();
}

ORTMODULE_KERNEL("ai.ortmodule", ReluGrad, "aten", [](const Node&) -> Kernel {
  return overwriting_kernel(
      [](at::Tensor& t, KernelContext& c) {
        if (are_plain(t, c.in(1)))
          relu_gradient(t, c.in(1), t);
        else
          at::threshold_backward_out(t, t, c.in(1), 0);
      },
      [](KernelContext& c) {
        if (!are_plain(c.in(0), c.in(1))) return at::threshold_backward(c.in(0), c.in(1), 0);
        at::Tensor dx = make_float(c.in(0).sizes());
        relu_gradient(c.in(0), c.in(1), dx);
        return dx;
      });
}).inplace();

ORTMODULE_KERNEL("", LeakyRelu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 0.01);
  return overwriting_kernel([alpha](at::Tensor& t, KernelContext&) { at::leaky_relu_(t, alpha); },
                            [alpha](KernelContext& c) { return at::leaky_relu(c.in(0), alpha); });
}).inplace();

ORTMODULE_KERNEL("ai.ortmodule", LeakyReluGrad, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 0.01);
  return overwriting_kernel(
      [alpha](at::Tensor& t, KernelContext& c) { at::leaky_relu_backward_out(t, t, c.in(1), alpha, false); },
      [alpha](KernelContext& c) { return at::leaky_relu_backward(c.in(0), c.in(1), alpha, false); });
}).inplace();

ORTMODULE_KERNEL("", Elu, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  return overwriting_kernel([alpha](at::Tensor& t, KernelContext&) { at::elu_(t, alpha); },
                            [alpha](KernelContext& c) { return at::elu(c.in(0), alpha); });
}).inplace();

ORTMODULE_KERNEL("ai.ortmodule", EluGrad, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 1);
  return overwriting_kernel(
      [alpha](at::Tensor& t, KernelContext& c) { at::elu_backward_out(t, t, alpha, 1, 1, false, c.in(1)); },
      [alpha](KernelContext& c) { return at::elu_backward(c.in(0), alpha, 1, 1, false, c.in(1)); });
}).inplace();

ORTMODULE_KERNEL("", HardSigmoid, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 0.2), beta = node.get_float("beta", 0.5);
  return [alpha, beta](KernelContext& c) { c.out(0, at::mul(c.in(0), alpha).add_(beta).clamp_(0, 1)); };
});

// Nothing passes where the output is 0 or 1: that is hardtanh's rule on the output.
ORTMODULE_KERNEL("ai.ortmodule", HardSigmoidGrad, "aten", [](const Node& node) -> Kernel {
  const double alpha = node.get_float("alpha", 0.2);
  return [alpha](KernelContext& c) { c.out(0, at::hardtanh_backward(c.in(0), c.in(1), 0, 1).mul_(alpha)); };
});

ORTMODULE_KERNEL("", HardSwish, "aten", unary_kernel<at::hardswish, at::hardswish_>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", HardSwishGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::hardswish_backward(c.in(0), c.in(1))); };
});

ORTMODULE_KERNEL("ai.ortmodule", HardTanh, "aten", [](const Node& node) -> Kernel {
  const double low = node.get_float("min_val", -1), high = node.get_float("max_val", 1);
  return overwriting_kernel([low, high](at::Tensor& t, KernelContext&) { at::clamp_(t, low, high); },
                            [low, high](KernelContext& c) { return at::clamp(c.in(0), low, high); });
}).inplace();

ORTMODULE_KERNEL("ai.ortmodule", HardTanhGrad, "aten", [](const Node& node) -> Kernel {
  const double low = node.get_float("min_val", -1), high = node.get_float("max_val", 1);
  return overwriting_kernel(
      [low, high](at::Tensor& t, KernelContext& c) { at::hardtanh_backward_out(t, t, c.in(1), low, high); },
      [low, high](KernelContext& c) { return at::hardtanh_backward(c.in(0), c.in(1), low, high); });
}).inplace();

// A bound that the graph holds as a constant, in the element type's own arithmetic.
std::optional<at::Scalar> constant_bound(const Node& node, size_t input) {
  const NodeArg* value = node.input(input);
  if (!value || !value->constant()) return std::nullopt;
  if (is_integer(value->constant()->dtype)) return at::Scalar(value->constant()->to_ints().at(0));
  return at::Scalar(value->constant()->to_doubles().at(0));
}

void clip_by_tensors(KernelContext& c) {
  const at::Tensor min = c.in_or_undefined(1), max = c.in_or_undefined(2);
  c.out(0, at::clamp(c.in(0), min.defined() ? std::optional<at::Tensor>(min) : std::nullopt,
                     max.defined() ? std::optional<at::Tensor>(max) : std::nullopt));
}

ORTMODULE_KERNEL("", Clip, "aten", [](const Node& node) -> Kernel {
  if (!node.input(1) && !node.input(2)) return [](KernelContext& c) { c.out(0, c.in(0).clone()); };
  const auto low = constant_bound(node, 1), high = constant_bound(node, 2);
  if ((low || !node.input(1)) && (high || !node.input(2))) {
    return overwriting_kernel([low, high](at::Tensor& t, KernelContext&) { at::clamp_(t, low, high); },
                              [low, high](KernelContext& c) { return at::clamp(c.in(0), low, high); });
  }
  return clip_by_tensors;
}).inplace();

// The conversion that keeps the order of uint64 converts tensors, not numbers.
ORTMODULE_KERNEL("", Clip, "aten",
                 [](const Node& node) -> Kernel {
                   if (!node.input(1) && !node.input(2)) return [](KernelContext& c) { c.out(0, c.in(0).clone()); };
                   return clip_by_tensors;
                 })
    .types({DType::kUInt64})
    .rare_types(RareTypes::kOrdered);

// dy inside the bounds, the bounds included.
ORTMODULE_KERNEL("ai.ortmodule", ClipGrad, "aten", [](const Node& node) -> Kernel {
  const auto low = constant_bound(node, 2), high = constant_bound(node, 3);
  return [low, high](KernelContext& c) {
    const at::Tensor& x = c.in(1);
    at::Tensor inside;
    if (c.has(2)) inside = low ? at::ge(x, *low) : at::ge(x, c.in(2));
    if (c.has(3)) {
      at::Tensor below = high ? at::le(x, *high) : at::le(x, c.in(3));
      inside = inside.defined() ? inside.logical_and_(below) : std::move(below);
    }
    c.out(0, inside.defined() ? at::where(inside, c.in(0), at::Scalar(0)) : c.in(0).clone());
  };
});

}  // namespace
}  // namespace ortmodule

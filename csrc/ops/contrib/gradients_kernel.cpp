// ATen kernels of com.microsoft's gradient operators.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

void check_same(const KernelContext& c, size_t i, const std::string& op) {
  ORTMODULE_CHECK(c.in(i).sizes() == c.in(0).sizes(), kRuntime, "[", op, "] expected input ", i,
                  " of the gradient's shape ", c.in(0).sizes(), ", got ", c.in(i).sizes());
}

using Pointwise = at::Tensor (*)(const at::Tensor& dy, const at::Tensor& x, double alpha);

// `x` is input 1, plus input 2 where there is a bias.
template <Pointwise formula>
Kernel pointwise(const Node& node) {
  const double fallback = node.op() == "QuickGeluGrad" ? 1.702 : 0.01;
  return [alpha = node.get_float("alpha", fallback), op = node.op()](KernelContext& c) {
    check_same(c, 1, op);
    const at::Tensor x = c.has(2) ? at::add(c.in(1), c.in(2)) : c.in(1);
    ORTMODULE_CHECK(x.sizes() == c.in(0).sizes(), kRuntime, "[", op, "] a bias of shape ", c.in(2).sizes(),
                    " does not fit ", c.in(1).sizes());
    c.out(0, formula(c.in(0), x, alpha));
  };
}

using T = const at::Tensor&;
at::Tensor relu(T dy, T y, double) { return at::threshold_backward(dy, y, 0); }
at::Tensor sigmoid(T dy, T y, double) { return at::sigmoid_backward(dy, y); }
at::Tensor tanh(T dy, T y, double) { return at::tanh_backward(dy, y); }
at::Tensor gelu(T dy, T x, double) { return at::gelu_backward(dy, x, "none"); }
at::Tensor fast_gelu(T dy, T x, double) { return at::gelu_backward(dy, x, "tanh"); }
at::Tensor leaky_relu(T dy, T x, double alpha) { return at::leaky_relu_backward(dy, x, alpha, false); }
at::Tensor quick_gelu(T dy, T x, double alpha) {
  const at::Tensor scaled = at::mul(x, alpha), s = at::sigmoid(scaled);
  return at::mul(dy, at::mul(s, at::add(at::mul(scaled, s.neg().add_(1)), 1)));
}

template <bool logarithm, bool flat>
Kernel softmax(const Node& node) {
  return [axis = node.get_int("axis", flat ? 1 : -1), op = node.op()](KernelContext& c) {
    check_same(c, 1, op);
    const int64_t first = positive_axis(axis, c.in(0).dim(), op.c_str());
    const at::Tensor dy = flat ? c.in(0).flatten(first) : c.in(0), y = flat ? c.in(1).flatten(first) : c.in(1);
    const at::Tensor dx = logarithm ? at::_log_softmax_backward_data(dy, y, first, y.scalar_type())
                                    : at::_softmax_backward_data(dy, y, first, y.scalar_type());
    c.out(0, dx.view(c.in(0).sizes()));
  };
}

// dX, dScale and dBias from the normalized values, in their type; `centered` where a mean was taken off.
void norm_gradients(KernelContext& c, int64_t axis, const std::string& op, const at::Tensor& normalized,
                    const at::Tensor& rstd, bool centered) {
  const at::Tensor &dy = c.in(0), &scale = c.in(2);
  const auto type = normalized.scalar_type();
  std::vector<int64_t> axes;
  for (int64_t a = positive_axis(axis, dy.dim(), op.c_str()); a < dy.dim(); ++a) axes.push_back(a);
  const at::Tensor wide = dy.to(type), g = at::mul(wide, scale.to(type));
  const auto mean = [&](const at::Tensor& t) { return at::mean(t, axes, true); };
  at::Tensor inner = g.sub(at::mul(normalized, mean(at::mul(g, normalized))));
  if (centered) inner = inner.sub(mean(g));
  c.out(0, at::mul(inner, rstd).to(dy.scalar_type()));
  if (c.wants(1)) c.out(1, at::mul(wide, normalized).sum_to_size(scale.sizes()).to(scale.scalar_type()));
  if (c.wants(2)) c.out(2, wide.sum_to_size(scale.sizes()).to(scale.scalar_type()));
}

enum class Norm { kLayer, kSimplified, kInvertible };
template <Norm kind>
Kernel norm(const Node& node) {
  return [axis = node.get_int("axis", -1), op = node.op()](KernelContext& c) {
    check_same(c, 1, op);
    const at::Tensor rstd = c.in(kind == Norm::kSimplified ? 3 : 4);
    const at::Tensor x = c.in(1).to(rstd.scalar_type());
    at::Tensor normalized;
    if (kind == Norm::kInvertible)
      normalized = x.sub(c.in(3).to(x.scalar_type())).div(c.in(2).to(x.scalar_type()));
    else
      normalized = at::mul(kind == Norm::kLayer ? x.sub(c.in(3)) : x, rstd);
    norm_gradients(c, axis, op, normalized, rstd, kind != Norm::kSimplified);
  };
}

at::Tensor from_front(const at::Tensor& indices, int64_t size) {
  const at::Tensor wide = indices.to(at::kLong);
  return at::where(wide.lt(0), wide.add(size), wide);
}

}  // namespace

#define POINTWISE(op, formula) ORTMODULE_KERNEL("com.microsoft", op, "aten", pointwise<formula>)
POINTWISE(ReluGrad, relu);
POINTWISE(SigmoidGrad, sigmoid);
POINTWISE(TanhGrad, tanh);
POINTWISE(GeluGrad, gelu);
POINTWISE(FastGeluGrad, fast_gelu);
POINTWISE(QuickGeluGrad, quick_gelu);
POINTWISE(LeakyReluGrad, leaky_relu);
POINTWISE(BiasGeluGrad_dX, gelu);
POINTWISE(BiasFastGeluGrad_dX, fast_gelu);
#undef POINTWISE

ORTMODULE_KERNEL("com.microsoft", SoftmaxGrad, "aten", softmax<false, true>);
ORTMODULE_KERNEL("com.microsoft", LogSoftmaxGrad, "aten", softmax<true, true>);
ORTMODULE_KERNEL("com.microsoft", SoftmaxGrad_13, "aten", softmax<false, false>);
ORTMODULE_KERNEL("com.microsoft", LogSoftmaxGrad_13, "aten", softmax<true, false>);

ORTMODULE_KERNEL("com.microsoft", DropoutGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    check_same(c, 1, "DropoutGrad");
    const double ratio = c.has(2) ? c.double_value(2) : 0.5;
    ORTMODULE_CHECK(ratio >= 0 && ratio < 1, kRuntime, "[DropoutGrad] ratio should be in [0, 1), got ", ratio);
    if (!c.has(3) || c.double_value(3) == 0) return c.out(0, c.in(0));
    c.out(0, at::mul(c.in(0), c.in(1)).mul_(1 / (1 - ratio)));
  };
});

ORTMODULE_KERNEL("com.microsoft", DivGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const at::Tensor &dy = c.in(0), &a = c.in(1), &b = c.in(2), da = at::div(dy, b);
    if (c.wants(0)) c.out(0, da.sum_to_size(a.sizes()));
    if (c.wants(1)) c.out(1, at::mul(da, at::div(a, b)).neg_().sum_to_size(b.sizes()));
  };
});

ORTMODULE_KERNEL("com.microsoft", LayerNormalizationGrad, "aten", norm<Norm::kLayer>);
ORTMODULE_KERNEL("com.microsoft", SimplifiedLayerNormalizationGrad, "aten", norm<Norm::kSimplified>);
ORTMODULE_KERNEL("com.microsoft", InvertibleLayerNormalizationGrad, "aten", norm<Norm::kInvertible>);

ORTMODULE_KERNEL("com.microsoft", GatherGrad, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 0)](KernelContext& c) {
    const at::Tensor dx = at::zeros(c.ints(0), c.in(2).options());
    const int64_t a = positive_axis(axis, dx.dim(), "GatherGrad"), rank = c.in(1).dim();
    ORTMODULE_CHECK(c.in(2).dim() == dx.dim() - 1 + rank, kRuntime, "[GatherGrad] dY of shape ", c.in(2).sizes(),
                    " does not fit indices of ", c.in(1).sizes(), " into ", dx.sizes());
    const at::Tensor rows = rank == 0 ? c.in(2).unsqueeze(a) : c.in(2).flatten(a, a + rank - 1);
    c.out(0, dx.index_add(a, from_front(c.in(1), dx.size(a)).reshape({-1}), rows));
  };
});

ORTMODULE_KERNEL("com.microsoft", GatherElementsGrad, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 0)](KernelContext& c) {
    check_same(c, 2, "GatherElementsGrad");
    const at::Tensor dx = at::zeros(c.ints(1), c.in(0).options());
    const int64_t a = positive_axis(axis, dx.dim(), "GatherElementsGrad");
    c.out(0, dx.scatter_add(a, from_front(c.in(2), dx.size(a)), c.in(0)));
  };
});

}  // namespace ortmodule

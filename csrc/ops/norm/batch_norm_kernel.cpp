// Kernels of BatchNormalization, BatchNormTraining and their gradients.
//
// The training form has kernels of its own for float planes on the CPU (batch_planes.h). Else it goes through ATen's
// _batch_norm_with_update, which picks cuDNN where eager does; it writes the running statistics in place, so it is
// given copies (a few hundred numbers) and the copies are the outputs.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_batch_norm_with_update.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/var.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <c10/util/DimVector.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/kernel_context.h"
#include "ops/norm/batch_planes.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

c10::DimVector all_but_channels(const at::Tensor& x) {
  c10::DimVector axes;
  for (int64_t i = 0; i < x.dim(); ++i)
    if (i != 1) axes.push_back(i);
  return axes;
}

// ATen reads as many numbers from the inputs `first` to 4 as there are channels.
void check_channels(KernelContext& c, const at::Tensor& x, size_t first) {
  for (size_t i = first; i < 5; ++i)
    ORTMODULE_CHECK(x.dim() >= 2 && c.in(i).dim() == 1 && c.in(i).size(0) == x.size(1), kRuntime,
                    "[BatchNormalization] X of shape ", x.sizes(), " and input ", i, " of shape ", c.in(i).sizes(),
                    " do not fit: expected one number per channel");
}

// ATen refuses an input without elements; it leaves the running statistics as they are, and its gradients are zero.
bool without_elements(KernelContext& c) {
  const at::Tensor& x = c.in(0);
  check_channels(c, x, 1);
  if (x.numel() > 0) return false;
  const auto statistics = [&](size_t i) { return at::zeros(c.in(i).sizes(), c.in(i).options()); };
  c.out(0, at::empty_like(x));
  if (c.wants(1)) c.out(1, c.in(3).clone());
  if (c.wants(2)) c.out(2, c.in(4).clone());
  if (c.wants(3)) c.out(3, statistics(3));
  if (c.wants(4)) c.out(4, statistics(4));
  if (c.wants(5)) c.out(5, at::empty({0}, x.options().dtype(at::kByte)));
  return true;
}

bool gradient_without_elements(KernelContext& c) {
  check_channels(c, c.in(1), 2);
  ORTMODULE_CHECK(c.in(0).sizes() == c.in(1).sizes(), kRuntime, "[BatchNormalization] the gradient of shape ",
                  c.in(0).sizes(), " does not fit X of shape ", c.in(1).sizes());
  if (c.in(1).numel() > 0) return false;
  c.out(0, at::empty_like(c.in(1)));
  if (c.wants(1)) c.out(1, at::zeros_like(c.in(2)));
  if (c.wants(2)) c.out(2, at::zeros_like(c.in(2)));
  return true;
}

// What a gradient kernel reads, X and its gradient in the one layout that X's strides mean, the numbers per channel one
// after another. ATen's kernels read X's gradient as X lies where one of them is one picture with the strides of a
// transposed view, and the numbers as if none lay between them; eager's gradients are wrong there.
struct GradientInputs {
  explicit GradientInputs(KernelContext& c)
      : dy(c.in(0).contiguous(c.in(1).suggest_memory_format())),
        x(c.in(1).contiguous(c.in(1).suggest_memory_format())),
        scale(c.in(2).contiguous()),
        mean(c.in(3).contiguous()),
        spread(c.in(4).contiguous()) {}
  at::Tensor dy, x, scale, mean, spread;  // spread: the variance, or one over its root
};

// Whether X, which is input `x`, and the numbers per channel, inputs up to 4, are what our own kernels take.
bool on_planes(KernelContext& c, size_t x) {
  for (size_t i = x + 1; i < 5; ++i)
    if (!has_batch_planes(c.in(x), c.in(i))) return false;
  return true;
}

// The standard's running statistics: momentum weighs the old ones, the variance is the biased one.
Kernel make_own_statistics(double epsilon, double momentum) {
  return [epsilon, momentum](KernelContext& c) {
    if (without_elements(c)) return;
    const at::Tensor& x = c.in(0);
    // Statistics of 16-bit data are float, which ATen keeps them in where all numbers per channel are.
    const auto type = computed_in(x.scalar_type());
    at::Tensor mean = c.in(3).to(type, false, true), var = c.in(4).to(type, false, true);
    auto [y, save_mean, save_invstd, reserve] =
        at::_batch_norm_with_update(x, c.in(1).to(type), c.in(2).to(type), mean, var, 0.0, epsilon);
    // Not what ATen made of them: its variance of one element is no number.
    const auto blended = [&](size_t old, const at::Tensor& now) {
      return c.in(old).to(type).mul(momentum).add_(now, 1 - momentum).to(c.in(old).scalar_type());
    };
    if (c.wants(1)) c.out(1, blended(3, save_mean));
    if (c.wants(2)) c.out(2, blended(4, at::var(x.to(type), all_but_channels(x), 0)));
    c.out(0, std::move(y));
    c.out(3, std::move(save_mean));
    c.out(4, std::move(save_invstd));
    c.out(5, std::move(reserve));
  };
}

Kernel make_batch_norm(const Node& node) {
  const double epsilon = node.get_float("epsilon", 1e-5);
  if (node.get_int("training_mode", node.op() == "BatchNormInternal"))
    return make_own_statistics(epsilon, node.get_float("momentum", 0.9));
  return [epsilon](KernelContext& c) {
    if (without_elements(c)) return;
    c.out(0, std::get<0>(at::native_batch_norm(c.in(0), c.in(1), c.in(2), c.in(3), c.in(4), false, 0.0, epsilon)));
  };
}

Kernel make_batch_norm_grad(const Node& node) {
  const double epsilon = node.get_float("epsilon", 1e-5);
  return [epsilon](KernelContext& c) {
    if (gradient_without_elements(c)) return;
    const GradientInputs in(c);
    const bool host = in.x.is_cpu();
    // CUDA's kernel has to be given the batch's statistics; without elements it takes the running ones. It computes
    // with floats per channel beside 16-bit data.
    const auto given = in.scale.scalar_type(), type = host ? given : computed_in(given);
    const at::Tensor none = host ? at::Tensor() : at::empty({0}, in.mean.options().dtype(type));
    auto [dx, dscale, dbias] =
        at::native_batch_norm_backward(in.dy, in.x, in.scale.to(type), in.mean.to(type), in.spread.to(type), none, none,
                                       false, epsilon, {c.wants(0), c.wants(1), c.wants(2)});
    c.out(0, std::move(dx));
    if (c.wants(1)) c.out(1, dscale.to(given));
    if (c.wants(2)) c.out(2, dbias.to(given));
  };
}

Kernel make_training(const Node& node) {
  const double epsilon = node.get_float("epsilon", 1e-5), momentum = node.get_float("momentum", 0.1);
  return [epsilon, momentum](KernelContext& c) {
    if (without_elements(c)) return;
    if (on_planes(c, 0)) {
      BatchStatistics now;
      c.out(0, normalized_batch(c.in(0), c.in(1), c.in(2), epsilon, now));
      const double count = static_cast<double>(c.in(0).numel() / c.in(0).size(1));
      const auto blended = [&](const at::Tensor& old, at::Tensor fresh) {
        return at::mul(old, 1 - momentum).add_(fresh, momentum);
      };
      c.out(1, blended(c.in(3), now.mean));
      c.out(2, blended(c.in(4), now.var.mul(count / (count - 1))));
      c.out(3, std::move(now.mean));
      c.out(4, std::move(now.invstd));
      c.out(5, at::empty({0}, c.in(0).options().dtype(at::kByte)));
      return;
    }
    at::Tensor mean = c.in(3).clone(), var = c.in(4).clone();
    auto [y, save_mean, save_invstd, reserve] =
        at::_batch_norm_with_update(c.in(0), c.in(1), c.in(2), mean, var, momentum, epsilon);
    c.out(0, std::move(y));
    c.out(1, std::move(mean));
    c.out(2, std::move(var));
    c.out(3, std::move(save_mean));
    c.out(4, std::move(save_invstd));
    c.out(5, std::move(reserve));
  };
}

// In float for 16-bit data, as the forward's kernel does it.
void apply_statistics(KernelContext& c) {
  const at::Tensor& x = c.in(0);
  check_channels(c, x, 1);
  if (on_planes(c, 0)) {
    c.out(0, normalized_batch(x, c.in(1), c.in(2), c.in(3), c.in(4)));
    return;
  }
  c10::DimVector sizes(x.dim(), 1);
  sizes[1] = x.size(1);
  const at::Tensor alpha = c.in(1).mul(c.in(4)), beta = at::addcmul(c.in(2), c.in(3), alpha, -1);
  c.out(0, at::addcmul(beta.view(sizes), x, alpha.view(sizes)).to(x.scalar_type()));
}

Kernel make_training_grad(const Node& node) {
  const double epsilon = node.get_float("epsilon", 1e-5);
  return [epsilon](KernelContext& c) {
    if (gradient_without_elements(c)) return;
    const at::Tensor& x = c.in(1);
    if (on_planes(c, 1) && c.in(0).scalar_type() == at::kFloat) {
      BatchGradients out = normalized_batch_gradients(c.in(0), x, c.in(2), c.in(3), c.in(4), c.wants(0));
      c.out(0, std::move(out.dx));
      c.out(1, std::move(out.dscale));
      c.out(2, std::move(out.dbias));
      return;
    }
    const at::Tensor reserve = c.has(5) ? c.in(5) : at::empty({0}, x.options().dtype(at::kByte));
    const auto type = c.in(2).scalar_type();
    const GradientInputs in(c);
    auto [dx, dscale, dbias] = at::batch_norm_backward(in.dy, in.x, in.scale.to(in.mean.scalar_type()), {}, {}, in.mean,
                                                       in.spread, true, epsilon, {c.wants(0), c.wants(1), c.wants(2)},
                                                       reserve);  // one type for all numbers per channel
    c.out(0, std::move(dx));
    if (c.wants(1)) c.out(1, dscale.to(type));
    if (c.wants(2)) c.out(2, dbias.to(type));
  };
}

}  // namespace

ORTMODULE_KERNEL("", BatchNormalization, "aten", make_batch_norm);
ORTMODULE_KERNEL("ai.ortmodule", BatchNormalizationGrad, "aten", make_batch_norm_grad);
ORTMODULE_KERNEL("com.microsoft", BatchNormInternal, "aten", make_batch_norm);
ORTMODULE_KERNEL("com.microsoft", BatchNormalizationGrad, "aten", make_training_grad);
ORTMODULE_KERNEL("ai.ortmodule", BatchNormTraining, "aten", make_training);
ORTMODULE_KERNEL("ai.ortmodule", BatchNormApply, "aten", [](const Node&) -> Kernel { return apply_statistics; });
ORTMODULE_KERNEL("ai.ortmodule", BatchNormTrainingGrad, "aten", make_training_grad);

}  // namespace ortmodule

// ATen kernels of BiasSoftmaxDropout and of the dropouts with bit masks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/seeded.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

double ratio_of(const KernelContext& c, size_t i, const char* op) {
  const double ratio = c.has(i) ? c.double_value(i) : 0.5;
  ORTMODULE_CHECK(ratio >= 0 && ratio < 1, kRuntime, "[", op, "] ratio should be in [0, 1), got ", ratio);
  return ratio;
}

at::Tensor bit_numbers(const at::Tensor& like) {
  return at::arange(32, at::TensorOptions(at::kLong).device(like.device()));
}
// bool[...] -> uint32[ceil(n / 32)]
at::Tensor packed_bits(const at::Tensor& kept) {
  const at::Tensor flat = kept.reshape({-1}).to(at::kLong);
  const at::Tensor words = at::constant_pad_nd(flat, {0, (32 - flat.size(0) % 32) % 32}).view({-1, 32});
  return words.bitwise_left_shift(bit_numbers(kept)).sum(1).to(at::kInt).view(at::kUInt32);
}
at::Tensor unpacked_bits(const at::Tensor& mask, const at::Tensor& like) {
  ORTMODULE_CHECK(mask.dim() == 1 && mask.size(0) == (like.numel() + 31) / 32, kRuntime,
                  "[BitmaskDropoutGrad] a mask of shape ", mask.sizes(), " does not fit ", like.sizes());
  const at::Tensor words = mask.contiguous().view(at::kInt).to(at::kLong).unsqueeze(1);
  const at::Tensor bits = words.bitwise_right_shift(bit_numbers(like)).bitwise_and(1);
  return bits.reshape({-1}).narrow(0, 0, like.numel()).view(like.sizes()).to(at::kBool);
}

// Drops of y, in place; gives the mask.
at::Tensor drop(const Seeded& seeded, at::Tensor& y, double ratio) {
  const at::Tensor mask = seeded.like(y, at::kBool, [&](at::Tensor& t, const std::optional<at::Generator>& generator) {
    t.bernoulli_(1 - ratio, generator);
  });
  y.mul_(mask).mul_(1 / (1 - ratio));
  return mask;
}

template <bool with_bias>
Kernel bitmask_dropout(const Node& node) {
  return [seeded = Seeded(node), op = node.op()](KernelContext& c) {
    const size_t controls = with_bias ? 3 : 1;
    at::Tensor y = with_bias ? at::add(c.in(0), c.in(1)) : c.in(0).clone();
    const double ratio = ratio_of(c, controls, op.c_str());
    const bool training = c.has(controls + 1) && c.double_value(controls + 1) != 0 && ratio > 0;
    const at::Tensor mask = training ? drop(seeded, y, ratio) : at::ones_like(y, at::kBool);
    if (with_bias && c.has(2)) y.add_(c.in(2));
    if (c.wants(1)) c.out(1, packed_bits(mask));
    c.out(0, std::move(y));
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", BitmaskDropout, "aten", bitmask_dropout<false>).rare_types(RareTypes::kAsIs);
ORTMODULE_KERNEL("com.microsoft", BitmaskBiasDropout, "aten", bitmask_dropout<true>).rare_types(RareTypes::kAsIs);

ORTMODULE_KERNEL("com.microsoft", BitmaskDropoutGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const double ratio = ratio_of(c, 2, "BitmaskDropoutGrad");
    if (!c.has(3) || c.double_value(3) == 0) return c.out(0, c.in(0));
    c.out(0, at::mul(c.in(0), unpacked_bits(c.in(1), c.in(0))).mul_(1 / (1 - ratio)));
  };
}).rare_types(RareTypes::kAsIs);

ORTMODULE_KERNEL("com.microsoft", BiasSoftmaxDropout, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 1), seeded = Seeded(node)](KernelContext& c) {
    const at::Tensor sum = at::add(c.in(0), c.in(1));
    const double ratio = ratio_of(c, 2, "BiasSoftmaxDropout");
    const int64_t first = positive_axis(axis, sum.dim(), "BiasSoftmaxDropout");
    const at::Tensor softmax = at::softmax(sum.flatten(first), first).view(sum.sizes());
    at::Tensor y = softmax.clone();
    c.out(1, ratio > 0 ? drop(seeded, y, ratio) : at::ones_like(y, at::kBool));
    c.out(0, std::move(y));
    c.out(2, softmax);
  };
});

}  // namespace ortmodule

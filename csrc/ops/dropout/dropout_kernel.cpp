// Kernels of the standard's Dropout and its gradient.
//
// Eager on the CPU draws a mask of the input's type with bernoulli_(1 - p), divides it by (1 - p) and multiplies.
// Drawing into booleans takes the same numbers from the generator and a quarter of the memory; multiplying by the scale
// rounded to the input's type gives the same bits. Eager on other devices calls native_dropout, and so do we.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <mutex>
#include <random>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

template <typename T, typename Opmath>
void apply_range(const T* x, const bool* mask, Opmath scale, T* out, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i)
    out[i] = static_cast<T>(static_cast<Opmath>(x[i]) * (mask[i] ? scale : Opmath(0)));
}

// out = x * mask * scale, in one pass; out may be x. All three are contiguous.
at::Tensor apply_mask(const at::Tensor& x, const at::Tensor& mask, double keep, bool overwrite) {
  const at::Tensor out = overwrite ? x : at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    using opmath_t = at::opmath_type<scalar_t>;
    const auto scale = static_cast<opmath_t>(static_cast<scalar_t>(opmath_t(1) / static_cast<opmath_t>(keep)));
    const scalar_t* in = x.const_data_ptr<scalar_t>();
    const bool* kept = mask.const_data_ptr<bool>();
    scalar_t* o = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), 65536,
                     [&](int64_t begin, int64_t end) { apply_range(in, kept, scale, o, begin, end); });
  });
  return out;
}

double ratio_of(const KernelContext& c, size_t i) { return c.has(i) ? c.double_value(i) : 0.5; }

// A node with a seed draws from a generator of its own: a Mersenne twister whose doubles have 53 bits, as in the
// standard's reference. It goes on from run to run.
class SeededDraws {
 public:
  explicit SeededDraws(int64_t seed) : engine_(static_cast<uint32_t>(seed)) {}

  at::Tensor keep_mask(const at::Tensor& x, double ratio) {
    at::Tensor mask = at::empty(x.sizes(), at::TensorOptions(at::kBool));
    bool* kept = mask.mutable_data_ptr<bool>();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const uint32_t high = engine_() >> 5, low = engine_() >> 6;
      kept[i] = (high * 67108864.0 + low) / 9007199254740992.0 >= ratio;
    }
    return mask.to(x.device());
  }

 private:
  std::mutex mutex_;
  std::mt19937 engine_;
};

void dropout(KernelContext& c, SeededDraws* seeded) {
  const at::Tensor& x = c.in(0);
  const double ratio = ratio_of(c, 1);
  const bool training = c.has(2) && c.double_value(2) != 0;
  if (!training || ratio == 0 || x.numel() == 0) {
    if (c.wants(1)) c.out(1, at::ones_like(x, at::kBool));
    return c.out(0, x);
  }
  if (ratio == 1) {
    if (c.wants(1)) c.out(1, at::zeros_like(x, at::kBool));
    return c.out(0, at::mul(x, at::zeros_like(x)));
  }
  if (seeded) {
    const at::Tensor mask = seeded->keep_mask(x, ratio);
    c.out(0, at::mul(x, mask).mul_(1 / (1 - ratio)));
    return c.out(1, mask);
  }
  if (!x.is_cpu()) {
    auto [y, mask] = at::native_dropout(x, ratio, true);
    c.out(0, std::move(y));
    return c.out(1, std::move(mask));
  }
  const at::Tensor mask = at::empty_like(x, at::kBool).bernoulli_(1 - ratio);
  if (x.is_non_overlapping_and_dense() && mask.strides() == x.strides()) {
    c.out(0, apply_mask(x, mask, 1 - ratio, c.may_overwrite(0)));
  } else {
    c.out(0, apply_mask(x.contiguous(), mask.contiguous(), 1 - ratio, false));
  }
  c.out(1, mask);
}

void dropout_grad(KernelContext& c) {
  const at::Tensor &dy = c.in(0), &mask = c.in(1);
  const double ratio = ratio_of(c, 2);
  const bool training = c.has(3) && c.double_value(3) != 0;
  if (!training || ratio == 0 || dy.numel() == 0) return c.out(0, dy);
  ORTMODULE_CHECK(mask.sizes() == dy.sizes(), kRuntime, "[DropoutGrad] a mask of ", mask.sizes(), " for dY of ",
                  dy.sizes());
  if (ratio == 1) return c.out(0, at::zeros_like(dy));
  if (!dy.is_cpu()) return c.out(0, at::native_dropout_backward(dy, mask, 1.0 / (1.0 - ratio)));
  if (dy.is_non_overlapping_and_dense() && mask.strides() == dy.strides())
    return c.out(0, apply_mask(dy, mask, 1 - ratio, c.may_overwrite(0)));
  c.out(0, apply_mask(dy.contiguous(), mask.contiguous(), 1 - ratio, false));
}

}  // namespace

ORTMODULE_KERNEL("", Dropout, "aten", [](const Node& node) -> Kernel {
  if (!node.find_attribute("seed")) return [](KernelContext& c) { dropout(c, nullptr); };
  return
      [draws = std::make_shared<SeededDraws>(node.get_int("seed", 0))](KernelContext& c) { dropout(c, draws.get()); };
}).inplace();
ORTMODULE_KERNEL("ai.ortmodule", DropoutGrad, "aten", [](const Node&) -> Kernel { return dropout_grad; }).inplace();

}  // namespace ortmodule

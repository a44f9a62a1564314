// Flash attention as a GPU has it, with what it saves for backward: log-sum-exp, and the two words of its dropout.
//
// Computed on the host by the formula. torch has these operators for GPUs alone; here they let the engine's calls of
// them run. Not here: speed, and other ways of attention.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "host_view.h"

namespace guarded {
namespace {

struct Parts {
  at::Tensor probabilities, kept, lse;  // kept: 0 or 1 / (1 - ratio)
  double scale;
};

// On the device, and lying in memory as `other` does: so do results of a GPU's kernels.
at::Tensor like(const at::Tensor& x, const at::Tensor& other) {
  const at::Tensor narrow = x.to(other.scalar_type());
  return at::empty_strided(
             other.sizes(),
             at::empty_like(at::empty_strided(other.sizes(), other.strides(), other.options().device(at::kMeta)))
                 .strides(),
             narrow.options())
      .copy_(narrow)
      .to(other.device());
}

at::Tensor wide(const at::Tensor& x) { return x.cpu().to(at::kFloat); }

Parts parts(const at::Tensor& q, const at::Tensor& k, double ratio, bool causal, std::optional<double> scale,
            at::Generator generator) {
  Parts out;
  out.scale = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  at::Tensor scores = at::matmul(q, k.mT()) * out.scale;
  if (causal)
    scores = scores.masked_fill(at::ones({q.size(2), k.size(2)}, at::kBool).triu(1),
                                -std::numeric_limits<double>::infinity());
  out.lse = at::logsumexp(scores, {-1});
  out.probabilities = at::softmax(scores, -1);
  out.kept = at::ones_like(scores);
  if (ratio > 0) out.kept = out.kept.bernoulli(1 - ratio, std::move(generator)) / (1 - ratio);
  return out;
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                           at::Tensor, at::Tensor>;

Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double ratio, bool causal, bool,
                std::optional<double> scale) {
  const OwnWork own;
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();  // the device's too
  const Parts p = parts(wide(q), wide(k), ratio, causal, scale, generator);
  const at::Tensor y = at::matmul(p.probabilities * p.kept, wide(v));
  const at::Tensor state = at::full({2}, static_cast<int64_t>(generator.current_seed()), at::kLong);
  return {like(y, q), p.lse.to(q.device()), at::Tensor(), at::Tensor(), q.size(2),
          k.size(2),  state.to(q.device()), at::Tensor(), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v, const at::Tensor& y, const at::Tensor& lse,
                                                        const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                                                        double ratio, bool causal, const at::Tensor& state,
                                                        const at::Tensor&, std::optional<double> scale) {
  const OwnWork own;
  const at::Tensor hq = wide(q), hk = wide(k), hv = wide(v), g = wide(dy);
  at::Generator generator;
  if (ratio > 0)
    generator = at::detail::createCPUGenerator(static_cast<uint64_t>(state.cpu().view(at::kLong)[0].item<int64_t>()));
  const Parts p = parts(hq, hk, ratio, causal, scale, generator);
  TORCH_CHECK(at::allclose(p.lse, wide(lse), 1e-3, 1e-3), "the saved log-sum-exp is not that of the operands");
  const at::Tensor dv = at::matmul((p.probabilities * p.kept).mT(), g), dp = at::matmul(g, hv.mT()) * p.kept;
  const at::Tensor along = (g * wide(y)).sum(-1, true);
  const at::Tensor ds = p.probabilities * (dp - along) * p.scale;
  return {like(at::matmul(ds, hk), q), like(at::matmul(ds.mT(), hq), k), like(dv, v)};
}

int64_t choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor&, const std::optional<at::Tensor>& mask,
               double, bool, std::optional<double>, bool) {
  const bool narrow = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return narrow && q.size(1) == k.size(1) && !(mask && mask->defined()) ? 1 : 0;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choice);
  m.impl("_scaled_dot_product_flash_attention", &forward);
  m.impl("_scaled_dot_product_flash_attention_backward", &backward);
}

}  // namespace
}  // namespace guarded

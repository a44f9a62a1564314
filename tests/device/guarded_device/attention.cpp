// Flash attention and cuDNN's as a GPU has them, with what they save for backward: log-sum-exp, and the two words of
// flash attention's dropout. A causal flash attention lets the last query see the last key, cuDNN's the first the
// first.
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
            at::Generator generator, int64_t seen_by_first = 1) {
  Parts out;
  out.scale = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  at::Tensor scores = at::matmul(q, k.mT()) * out.scale;
  if (causal)
    scores = scores.masked_fill(at::ones({q.size(2), k.size(2)}, at::kBool).triu(seen_by_first),
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
  const Parts p = parts(wide(q), wide(k), ratio, causal, scale, generator, k.size(2) - q.size(2) + 1);
  const at::Tensor y = at::matmul(p.probabilities * p.kept, wide(v));
  const at::Tensor state = at::full({2}, static_cast<int64_t>(generator.current_seed()), at::kLong);
  return {like(y, q), p.lse.to(q.device()), at::Tensor(), at::Tensor(), q.size(2),
          k.size(2),  state.to(q.device()), at::Tensor(), at::Tensor()};
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients gradients(const Parts& p, const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& y, const at::Tensor& lse) {
  const at::Tensor hq = wide(q), hk = wide(k), hv = wide(v), g = wide(dy);
  TORCH_CHECK(at::allclose(p.lse, wide(lse), 1e-3, 1e-3), "the saved log-sum-exp is not that of the operands");
  const at::Tensor dv = at::matmul((p.probabilities * p.kept).mT(), g), dp = at::matmul(g, hv.mT()) * p.kept;
  const at::Tensor along = (g * wide(y)).sum(-1, true);
  const at::Tensor ds = p.probabilities * (dp - along) * p.scale;
  return {like(at::matmul(ds, hk), q), like(at::matmul(ds.mT(), hq), k), like(dv, v)};
}

Gradients backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& y, const at::Tensor& lse, const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                   double ratio, bool causal, const at::Tensor& state, const at::Tensor&, std::optional<double> scale) {
  const OwnWork own;
  at::Generator generator;
  if (ratio > 0)
    generator = at::detail::createCPUGenerator(static_cast<uint64_t>(state.cpu().view(at::kLong)[0].item<int64_t>()));
  const Parts p = parts(wide(q), wide(k), ratio, causal, scale, generator, k.size(2) - q.size(2) + 1);
  return gradients(p, dy, q, k, v, y, lse);
}

Forward cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>&,
                      bool with_sums, double ratio, bool causal, bool, std::optional<double> scale) {
  const OwnWork own;
  TORCH_CHECK(ratio == 0, "this device drops nothing in cuDNN's attention");
  const Parts p = parts(wide(q), wide(k), 0.0, causal, scale, {});
  const at::Tensor y = at::matmul(p.probabilities, wide(v)), word = at::empty({}, at::kLong);
  const at::Tensor sums = with_sums ? p.lse.unsqueeze(-1).to(q.device()) : at::Tensor();
  return {like(y, q),          sums,        at::Tensor(), at::Tensor(), q.size(2), k.size(2), word.to(q.device()),
          word.to(q.device()), at::Tensor()};
}

Gradients cudnn_backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& y, const at::Tensor& lse, const at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, double, bool causal,
                         std::optional<double> scale) {
  const OwnWork own;
  TORCH_CHECK(lse.dim() == 4 && lse.size(3) == 1, "cuDNN's sums have four dimensions");
  return gradients(parts(wide(q), wide(k), 0.0, causal, scale, {}), dy, q, k, v, y, lse.squeeze(-1));
}

// Flash (1), memory-efficient (2), which is not here, or cuDNN's attention (3), as the rule of a GPU may choose.
int64_t choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor&, const std::optional<at::Tensor>& mask,
               double ratio, bool causal, std::optional<double>, bool) {
  const bool narrow = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (!narrow || q.size(1) != k.size(1) || (mask && mask->defined())) return 0;
  if (ratio == 0 && q.size(2) % 2 == 0) return 3;
  return causal && q.size(2) != k.size(2) ? 2 : 1;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choice);
  m.impl("_scaled_dot_product_flash_attention", &forward);
  m.impl("_scaled_dot_product_flash_attention_backward", &backward);
  m.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
  m.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace
}  // namespace guarded

// "cuda" kernels of Attention, PhiloxAttention and AttentionGrad: cuDNN's, flash and memory-efficient attention through
// ATen, whose log-sum-exp is saved, so that backward does not run forward again and no score matrix is in memory.
//
// cuDNN's runs where ATen's own rule (at::_fused_sdp_choice) takes it and nothing is masked; flash attention takes
// 16-bit types without a mask, the third one masks and float32; where the rule allows none, or a device lacks them, the
// "aten" kernels take over, and the saved sums are empty. All of them read 16 bytes at once: operands that do not begin
// there are copied.
// Dropout: the kernels draw from the device's generator, which is set to the seed of (state, stream) for the launch and
// put back; backward is given the same two numbers (Note [Random state]). Which elements are dropped is theirs to say,
// so that masks differ from the CPU's. Not here: projections and the past, which "aten" has.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <mutex>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/philox_state.h"
#include "ops/attention/slots.h"
#include "records/attention_form.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// at::SDPBackend
constexpr int64_t kMath = 0, kFlash = 1, kEfficient = 2, kCudnn = 3;
constexpr int64_t kHeadStep = 8, kMostFlashHead = 256;
constexpr int64_t kRowBytes = 16;

struct Settings {
  bool causal;
  std::optional<double> scale;
  int64_t stream;

  explicit Settings(const Node& node) : causal(node.get_int("is_causal", 0) != 0), stream(node.get_int("stream", 0)) {
    if (node.find_attribute("scale")) scale = node.get_float("scale", 1.0);
  }
};

// Whether the device has the operator itself: builds of torch without CUDA know its name alone.
struct Has {
  explicit Has(const char* op) {
    const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
    cuda = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    other = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  }
  bool on(const at::Tensor& t) const { return t.is_cuda() ? cuda : t.is_privateuseone() && other; }
  bool cuda, other;
};

bool is_narrow(const at::Tensor& q) { return q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16; }

// Flash attention lets the last query see the last key, ATen and ONNX the first query the first key alone.
bool flash_fits(const at::Tensor& q, const at::Tensor& k, const at::Tensor& mask, const Settings& s) {
  return is_narrow(q) && !mask.defined() && q.size(3) <= kMostFlashHead && !(s.causal && q.size(2) != k.size(2));
}

// Whether the kernel's mask may be this one: keys in rows of 16 bytes.
bool mask_fits(const at::Tensor& mask, const at::Tensor& k) {
  return mask.size(-1) == k.size(2) && mask.size(-1) % kHeadStep == 0;
}

// Which of ATen's kernels computes the operands; kMath: none. What follows from the operands alone need not be saved
// for backward, whatever the user has switched since; that it was cuDNN the saved sums tell (cudnn_sums).
int64_t backend_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask, double ratio,
                   const Settings& s) {
  const bool plain = q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.numel() > 0 && k.numel() > 0 &&
                     q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type() &&
                     k.size(2) == v.size(2) && q.size(3) == v.size(3) && q.size(3) % kHeadStep == 0;
  if (!plain || (mask.defined() && (mask.scalar_type() != q.scalar_type() || s.causal))) return kMath;
  const bool grouped = q.size(1) != k.size(1);
  const int64_t choice = at::_fused_sdp_choice(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt, ratio,
                                               s.causal, s.scale, grouped);
  if (choice != kFlash && choice != kEfficient && choice != kCudnn) return kMath;
  static const Has cudnn("aten::_scaled_dot_product_cudnn_attention"),
      flash("aten::_scaled_dot_product_flash_attention"), efficient("aten::_scaled_dot_product_efficient_attention");
  if (choice == kCudnn && cudnn.on(q) && !mask.defined() && q.size(2) > 1) return kCudnn;
  if (flash_fits(q, k, mask, s)) return flash.on(q) ? kFlash : kMath;
  if (grouped || !efficient.on(q)) return kMath;
  return mask.defined() ? (mask_fits(mask, k) ? kEfficient : kMath) : (choice == kEfficient ? kEfficient : kMath);
}

// cuDNN's sums [B, H, L, 1] are saved as [B, H * L, 1]: the others' have L, which is more than one, at the end.
at::Tensor cudnn_sums(const at::Tensor& lse) { return lse.reshape({lse.size(0), -1, 1}); }

bool are_cudnn_sums(const at::Tensor& lse, const at::Tensor& q) { return q.size(2) > 1 && lse.size(2) == 1; }

// The operand with each row at a multiple of 16 bytes.
at::Tensor aligned(const at::Tensor& t) {
  if (!t.defined()) return t;
  const int64_t step = kRowBytes / t.element_size();
  bool fits = reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kRowBytes == 0 && t.stride(-1) <= 1;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) fits = fits && (t.size(d) == 1 || t.stride(d) % step == 0);
  return fits ? t : t.clone(at::MemoryFormat::Contiguous);
}

at::Tensor expanded(const at::Tensor& mask, const at::Tensor& q, const at::Tensor& k) {
  return mask.defined() ? mask.expand({q.size(0), q.size(1), q.size(2), k.size(2)}) : at::Tensor();
}

// The device's generator draws from a seed of its own while this is there.
class Seeded {
 public:
  Seeded(const c10::Device& device, std::optional<uint64_t> seed) {
    if (!seed) return;
    generator_ = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator_.mutex());  // the kernel takes it too: not held until then
    before_ = generator_.get_state();
    generator_.set_current_seed(*seed);
  }
  ~Seeded() {
    if (!generator_.defined()) return;
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

struct Draw {
  double ratio = 0;
  std::optional<uint64_t> seed{};
};

Draw draw_of(const KernelContext& c, size_t ratio, size_t state, const Settings& s) {
  Draw out;
  if (!c.has(ratio)) return out;
  out.ratio = c.double_value(ratio);
  if (out.ratio > 0) out.seed = philox_seed(philox_state_words(c.in(state)).data(), s.stream);
  return out;
}

// False: nothing was handed out.
bool forward(KernelContext& c, const Settings& s, const Draw& draw, size_t lse_output) {
  const at::Tensor given = c.in_or_undefined(kMask);
  const int64_t backend =
      draw.ratio < 1 ? backend_of(c.in(kQuery), c.in(kKey), c.in(kValue), given, draw.ratio, s) : kMath;
  if (backend == kMath) return false;
  const at::Tensor q = aligned(c.in(kQuery)), k = aligned(c.in(kKey)), v = aligned(c.in(kValue)), mask = aligned(given);
  const Seeded seeded(q.device(), draw.seed);
  at::Tensor y, lse;
  if (backend == kCudnn) {
    auto made =
        at::_scaled_dot_product_cudnn_attention(q, k, v, {}, c.wants(lse_output), draw.ratio, s.causal, false, s.scale);
    y = std::get<0>(made);
    if (c.wants(lse_output)) lse = cudnn_sums(std::get<1>(made));
  } else if (backend == kFlash) {
    auto made = at::_scaled_dot_product_flash_attention(q, k, v, draw.ratio, s.causal, false, s.scale);
    y = std::get<0>(made);
    lse = std::get<1>(made);
  } else {
    const at::Tensor bias = expanded(mask, q, k);
    auto made =
        at::_scaled_dot_product_efficient_attention(q, k, v, bias.defined() ? std::optional(bias) : std::nullopt,
                                                    c.wants(lse_output), draw.ratio, s.causal, s.scale);
    y = std::get<0>(made);
    lse = std::get<1>(made);
  }
  c.out(kResult, std::move(y));
  c.out(lse_output, std::move(lse));
  return true;
}

// Seed and offset on the device, as forward's kernel gave them; no numbers where nothing is drawn.
at::Tensor state_of(const Draw& draw, const at::Tensor& q) {
  const at::TensorOptions words = at::TensorOptions(at::kLong);
  if (!draw.seed) return at::empty({2}, words.device(q.device()));
  at::Tensor state = at::empty({2}, words);
  state.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(*draw.seed);
  state.mutable_data_ptr<int64_t>()[1] = 0;
  return state.to(q.device(), /*non_blocking=*/true);
}

bool cudnn_backward(KernelContext& c, const Settings& s, const Draw& draw, const at::Tensor& dy, const at::Tensor& q,
                    const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor state = state_of(draw, q);
  const at::Tensor lse = c.in(kGradLse).view({q.size(0), q.size(1), q.size(2), 1});
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      dy, q, k, v, c.in(kGradResult), lse, state.select(0, 0), state.select(0, 1), {}, {}, {}, q.size(2), k.size(2),
      draw.ratio, s.causal, s.scale);
  c.out(kQueryGrad, std::move(dq));
  c.out(kKeyGrad, std::move(dk));
  c.out(kValueGrad, std::move(dv));
  return true;
}

bool backward(KernelContext& c, const Settings& s) {
  const at::Tensor &y = c.in(kGradResult), &lse = c.in(kGradLse);
  if (lse.numel() == 0) return false;  // forward was the "aten" kernel
  const at::Tensor dy = aligned(c.in(kGradOfResult)), q = aligned(c.in(kGradQuery)), k = aligned(c.in(kGradKey)),
                   v = aligned(c.in(kGradValue)), mask = aligned(c.in_or_undefined(kGradMask));
  const Draw draw = draw_of(c, kGradRatio, kGradRandomState, s);
  if (are_cudnn_sums(lse, q)) return cudnn_backward(c, s, draw, dy, q, k, v);
  const at::TensorOptions words = at::TensorOptions(at::kLong);
  if (flash_fits(q, k, mask, s)) {
    const at::Tensor none = at::empty({0}, words.device(q.device()));
    const at::Tensor state = draw.seed ? state_of(draw, q).view(at::kUInt64) : none;
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        dy, q, k, v, y, lse, {}, {}, q.size(2), k.size(2), draw.ratio, s.causal, state, none, s.scale);
    c.out(kQueryGrad, std::move(dq));
    c.out(kKeyGrad, std::move(dk));
    c.out(kValueGrad, std::move(dv));
    return true;
  }
  const bool of_mask = c.wants(kMaskGrad) && mask.defined();
  auto [dq, dk, dv, dmask] = at::_scaled_dot_product_efficient_attention_backward(
      dy, q, k, v, expanded(mask, q, k), y, lse, at::scalar_tensor(static_cast<int64_t>(draw.seed.value_or(0)), words),
      at::scalar_tensor(0, words), draw.ratio, {true, true, true, of_mask}, s.causal, s.scale);
  c.out(kQueryGrad, std::move(dq));
  c.out(kKeyGrad, std::move(dk));
  c.out(kValueGrad, std::move(dv));
  if (of_mask) c.out(kMaskGrad, dmask.sum_to_size(mask.sizes()));
  return true;
}

using Attempt = bool (*)(KernelContext&, const Settings&);

template <Attempt attempt>
Kernel with_aten(const Node& node) {
  const KernelDef* aten = KernelRegistry::instance().find(node, {});
  ORTMODULE_INTERNAL(aten, "there is no kernel of ATen's for ", node.describe());
  return [settings = Settings(node), other = make_kernel(*aten, node)](KernelContext& c) {
    if (!attempt(c, settings)) other(c);
  };
}

bool plain_forward(KernelContext& c, const Settings& s) { return forward(c, s, {}, kLse); }

Kernel make_attention(const Node& node) {
  if (plain_attention(node)) return with_aten<plain_forward>(node);
  return make_kernel(*KernelRegistry::instance().find(node, {}), node);
}

bool philox_forward(KernelContext& c, const Settings& s) {
  return forward(c, s, draw_of(c, kRatio, kRandomState, s), kPhiloxLse);
}

}  // namespace

ORTMODULE_KERNEL("", Attention, "cuda", make_attention);
ORTMODULE_KERNEL("ai.ortmodule", PhiloxAttention, "cuda", with_aten<philox_forward>);
ORTMODULE_KERNEL("ai.ortmodule", AttentionGrad, "cuda", with_aten<backward>);

}  // namespace ortmodule

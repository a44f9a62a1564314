// ATen kernels of DFT, STFT and their gradients. Half precision is transformed in float.
#include <ATen/core/Tensor.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_ifft.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"

namespace ortmodule {
namespace {

at::Tensor computed(const at::Tensor& t) { return t.to(computed_in(t.scalar_type())); }

// [..., 1] as real numbers, [..., 2] as complex ones.
at::Tensor numbers(const at::Tensor& x, const char* op) {
  ORTMODULE_CHECK(x.dim() >= 2 && (x.size(-1) == 1 || x.size(-1) == 2), kRuntime, "[", op,
                  "] the input should be [..., 1 or 2], got ", x.sizes());
  return x.size(-1) == 1 ? x.squeeze(-1) : at::view_as_complex(x.contiguous());
}

TensorFunction dft(const Node& node) {
  return [inverse = node.get_int("inverse", 0) != 0,
          onesided = node.get_int("onesided", 0) != 0](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor& given = in[0];
    const int64_t along = positive_axis(int_of(in.size() > 2 ? in[2] : at::Tensor(), -2), given.dim(), "DFT");
    ORTMODULE_CHECK(along + 1 < given.dim(), kRuntime, "[DFT] the last axis cannot be transformed");
    const at::Tensor x = numbers(computed(given), "DFT");
    const bool to_real = inverse && onesided;
    const int64_t n =
        int_of(in.size() > 1 ? in[1] : at::Tensor(), to_real ? 2 * (given.size(along) - 1) : given.size(along));
    ORTMODULE_CHECK(n > 0, kRuntime, "[DFT] a length of ", n);
    at::Tensor y;
    if (to_real)
      return {at::fft_irfft(x, n, along).unsqueeze(-1).to(given.scalar_type())};
    else if (inverse)
      y = at::fft_ifft(x, n, along);
    else if (onesided && !x.is_complex())
      y = at::fft_rfft(x, n, along);
    else
      y = at::fft_fft(x, n, along);
    if (onesided) y = y.narrow(along, 0, n / 2 + 1);
    return {at::view_as_real(y).contiguous().to(given.scalar_type())};
  };
}

TensorFunction stft(const Node& node) {
  return [onesided = node.get_int("onesided", 1) != 0](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
    in.resize(4);
    const at::Tensor &given = in[0], &window = in[2];
    at::Tensor signal = computed(given);
    signal = signal.dim() == 2 ? signal : numbers(signal, "STFT");
    ORTMODULE_CHECK(signal.dim() == 2, kRuntime, "[STFT] signal should be [batch, length, 1 or 2], got ",
                    given.sizes());
    const int64_t n = int_of(in[3], window.defined() ? window.numel() : signal.size(1)), hop = int_of(in[1], 1);
    ORTMODULE_CHECK(n > 0 && n <= signal.size(1) && hop > 0, kRuntime, "[STFT] frames of ", n, " every ", hop,
                    " do not fit a signal of ", signal.size(1));
    at::Tensor frames = signal.unfold(1, n, hop);
    if (window.defined()) {
      ORTMODULE_CHECK(window.dim() == 1 && window.size(0) == n, kRuntime, "[STFT] expected a window of ", n,
                      " elements, got ", window.sizes());
      frames = frames.mul(computed(window));
    }
    const at::Tensor y = onesided && !frames.is_complex() ? at::fft_rfft(frames) : at::fft_fft(frames);
    return {at::view_as_real(y).contiguous().to(given.scalar_type())};
  };
}

}  // namespace

ORTMODULE_KERNEL("", DFT, "aten", function_kernel_of<dft>);
ORTMODULE_KERNEL("ai.ortmodule", DFTGrad, "aten", rerun_kernel_of<dft>);
ORTMODULE_KERNEL("", STFT, "aten", function_kernel_of<stft>);
ORTMODULE_KERNEL("ai.ortmodule", STFTGrad, "aten", rerun_kernel_of<stft>);

}  // namespace ortmodule

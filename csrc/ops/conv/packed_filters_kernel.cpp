#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/relu.h>

#include <optional>

#include "base/mapped_pages.h"
#include "ops/conv/few_channels.h"
#include "ops/conv/packed_filters.h"
#include "products/matmul_provider.h"

namespace ortmodule {
namespace {

// Torch's own operators of oneDNN, which its compiler uses.
struct OneDnn {
  c10::OperatorHandle reorder, convolve, convolve_and_add;
};

const std::optional<OneDnn>& onednn() {
  static const std::optional<OneDnn> found = []() -> std::optional<OneDnn> {
    if (!at::globalContext().userEnabledMkldnn() || !at::Context::hasMKLDNN()) return std::nullopt;
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto reorder = dispatcher.findSchema({"mkldnn::_reorder_convolution_weight", ""});
    const auto convolve = dispatcher.findSchema({"mkldnn::_convolution_pointwise", ""});
    const auto convolve_and_add = dispatcher.findSchema({"mkldnn::_convolution_pointwise", "binary"});
    if (!reorder || !convolve || !convolve_and_add) return std::nullopt;
    return OneDnn{*reorder, *convolve, *convolve_and_add};
  }();
  return found;
}

bool is_plain(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kFloat &&
         (t.is_contiguous() || t.is_contiguous(at::MemoryFormat::ChannelsLast));
}

at::Tensor called(const c10::OperatorHandle& op, c10::Stack stack) {
  op.callBoxed(stack);
  return stack.back().toTensor();
}

}  // namespace

std::shared_ptr<PackedFilters> PackedFilters::of(const Node& node) {
  return node.input(1)->constant() && onednn() ? std::make_shared<PackedFilters>() : nullptr;
}

template <class Pack>
at::Tensor PackedFilters::Layout::of(const at::Tensor& w, Pack pack) {
  std::call_once(once, [&] {
    filters = w;
    packed = pack();
    release_pages(w.const_data_ptr(), w.nbytes());
  });
  return w.const_data_ptr() == filters.const_data_ptr() && w.sizes() == filters.sizes() ? packed : at::Tensor();
}

at::Tensor PackedFilters::convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                                      const ConvAttributes& a, c10::IntArrayRef padding, c10::IntArrayRef y,
                                      const ConvEnding& ending) {
  if (x.dim() != 4 || x.numel() == 0 || w.numel() == 0 || !is_plain(x) || !is_plain(w) ||
      (bias.defined() && !is_plain(bias)) || deterministic_compute())
    return {};
  if (!ending.other.defined() && is_few_channels(x, w, a, y)) {
    const at::Tensor filters = few_channels_.of(w, [&] { return few_channel_filters(w); });
    if (!filters.defined()) return {};
    return few_channel_convolution(x, w, filters, bias, a, padding, y, ending.relu);
  }
  const at::Tensor filters = onednn_.of(
      w, [&] { return called(onednn()->reorder, {w, padding, a.strides, a.dilations, a.group, x.sizes()}); });
  if (!filters.defined()) return {};
  const auto none = c10::List<std::optional<at::Scalar>>();
  const c10::IValue start = bias.defined() ? c10::IValue(bias) : c10::IValue(), text{std::string()};
  at::Tensor sums = ending.other.defined()
                        ? called(onednn()->convolve_and_add,
                                 {x, ending.other, filters, start, padding, a.strides, a.dilations, a.group, "add",
                                  c10::IValue(at::Scalar(1.0)), c10::IValue(), none, c10::IValue()})
                        : called(onednn()->convolve,
                                 {x, filters, start, padding, a.strides, a.dilations, a.group, "none", none, text});
  // oneDNN's own ReLU makes a NaN zero.
  if (ending.relu) at::relu_(sums);
  return sums;
}

}  // namespace ortmodule

#include "autograd/batched_gradients.h"

#include <ATen/functorch/BatchedTensorImpl.h>
// Behind functorch's, whose functions of the same names would find these.
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "base/status.h"

namespace ortmodule {

using torch::autograd::variable_list;

namespace {

constexpr const char* kNested =
    "ORTModule's backward takes one batch of gradients at a time, not nested ones; call the wrapped module itself "
    "(model.module)";

// A tensor taken out of the batched one that holds it. Torch has two kinds of those: of `torch.func.vmap`, and of
// `is_grads_batched=True`.
struct Batch {
  at::Tensor value;
  int64_t axis, level;
  bool legacy;
};

std::optional<Batch> batch_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (const auto* batch = at::functorch::maybeGetBatchedImpl(tensor))
    return Batch{batch->value(), batch->bdim(), batch->level(), false};
  if (const auto* batch = at::maybeGetBatchedImpl(tensor)) {
    ORTMODULE_CHECK(batch->bdims().size() == 1, kUnsupported, kNested);
    return Batch{batch->value(), batch->bdims()[0].dim(), batch->bdims()[0].level(), true};
  }
  return std::nullopt;
}

at::Tensor batched(at::Tensor value, const Batch& like) {
  if (like.legacy) return at::makeBatched(std::move(value), at::BatchDims{at::BatchDim(like.level, 0)});
  return at::functorch::makeBatched(std::move(value), 0, like.level);
}

}  // namespace

bool any_batched(const variable_list& grads) {
  constexpr c10::DispatchKeySet kinds({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched});
  return std::any_of(grads.begin(), grads.end(),
                     [&](const at::Tensor& grad) { return grad.defined() && grad.key_set().has_any(kinds); });
}

variable_list batched_gradients(const variable_list& grads, const OneBackward& backward) {
  std::vector<std::optional<Batch>> batches;
  std::optional<Batch> like;
  for (const at::Tensor& grad : grads) {
    batches.push_back(batch_of(grad));
    if (!batches.back()) continue;
    like = batches.back();
    ORTMODULE_CHECK(!any_batched({like->value}), kUnsupported, kNested);
  }
  std::vector<std::vector<at::Tensor>> found;  // by gradient, by direction
  variable_list stacked;
  // Plain operators: the running transform sees none of them.
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::VmapMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  const int64_t size = like->value.size(like->axis);
  for (int64_t i = 0; i < size; ++i) {
    variable_list one;
    for (size_t k = 0; k < grads.size(); ++k)
      one.push_back(batches[k] ? batches[k]->value.select(batches[k]->axis, i) : grads[k]);
    variable_list results = backward(one, i + 1 < size);
    found.resize(results.size());
    for (size_t k = 0; k < results.size(); ++k) found[k].push_back(std::move(results[k]));
  }
  for (const std::vector<at::Tensor>& each : found)
    stacked.push_back(each[0].defined() ? batched(at::stack(each), *like) : at::Tensor());
  return stacked;
}

}  // namespace ortmodule

#include "autograd/higher_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBase.h>

#include <mutex>

namespace ortmodule {

GivenTensors::State GivenTensors::state_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return {nullptr, 0};
  return {tensor.has_storage() ? tensor.storage().data() : nullptr, static_cast<uint32_t>(tensor._version())};
}

GivenTensors::GivenTensors(const HigherOrder& higher, const std::vector<at::Tensor>& inputs, bool all) {
  if (higher.expected) {
    held_ = inputs;
    states_.reserve(inputs.size());
    for (const at::Tensor& x : inputs) states_.push_back(state_of(x));
  } else {
    held_.reserve(higher.given.size());
    watched_.reserve(higher.given.size());
    for (size_t k = 0; k < higher.given.size(); ++k) {
      const at::Tensor& x = inputs[higher.given[k]];
      watched_.emplace_back(x.getIntrusivePtr());
      const bool overwritten = all && higher.written[k];
      held_.push_back(overwritten ? x.detach().clone() : all || x.requires_grad() ? x : at::Tensor());
    }
  }
  if (!higher.draws) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator_ = generator.clone();
}

HigherOrder::Given GivenTensors::lock() const {
  HigherOrder::Given out;
  out.tensors = held_;
  for (size_t i = 0; i < watched_.size(); ++i)
    if (!out.tensors[i].defined())
      if (auto tensor = watched_[i].lock()) out.tensors[i] = at::Tensor(std::move(tensor));
  out.whole = !states_.empty();
  for (size_t i = 0; i < states_.size(); ++i) {
    const State now = state_of(held_[i]);
    if (now.data != states_[i].data || now.version != states_[i].version) out.changed.push_back(i);
  }
  if (generator_.defined()) out.random_state = generator_.get_state();
  return out;
}

}  // namespace ortmodule

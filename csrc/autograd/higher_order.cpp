#include "autograd/higher_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBase.h>

#include <mutex>

namespace ortmodule {

GivenTensors::GivenTensors(const HigherOrder& higher, const std::vector<at::Tensor>& inputs, bool all) {
  held_.reserve(higher.given.size());
  watched_.reserve(higher.given.size());
  for (size_t k = 0; k < higher.given.size(); ++k) {
    const at::Tensor& x = inputs[higher.given[k]];
    watched_.emplace_back(x.getIntrusivePtr());
    const bool overwritten = all && higher.written[k];
    held_.push_back(overwritten ? x.detach().clone() : all || x.requires_grad() ? x : at::Tensor());
  }
  if (!higher.draws) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator_ = generator.clone();
}

std::vector<at::Tensor> GivenTensors::lock() const {
  std::vector<at::Tensor> out = held_;
  for (size_t i = 0; i < out.size(); ++i)
    if (!out[i].defined())
      if (auto tensor = watched_[i].lock()) out[i] = at::Tensor(std::move(tensor));
  return out;
}

}  // namespace ortmodule

#include "bindings/calls/argument_aliases.h"

#include "kernels/materialized.h"

namespace ortmodule {
namespace {

bool shared(const at::Tensor& t) { return memory_of(t) && t.unsafeGetTensorImpl()->unsafe_storage().use_count() > 1; }

}  // namespace

void ArgumentAliases::begin(const std::vector<at::Tensor>& arguments) {
  arguments_ = &arguments;
  mask_ = 0;
  found_.clear();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].defined()) continue;
    const uint64_t own = bit(arguments[i].unsafeGetTensorImpl());
    for (size_t j = 0; (mask_ & own) && j < i; ++j) {
      if (!arguments[j].is_same(arguments[i])) continue;
      found_.emplace_back(i, static_cast<int64_t>(j));
      break;
    }
    mask_ |= own;
  }
}

void ArgumentAliases::look_up(const c10::TensorImpl* tensor, size_t number) {
  for (size_t i = 0; i < arguments_->size(); ++i)
    if ((*arguments_)[i].defined() && (*arguments_)[i].unsafeGetTensorImpl() == tensor)
      found_.emplace_back(i, ~static_cast<int64_t>(number));
}

bool ArgumentAliases::write_meets(const std::vector<const at::Tensor*>& written, size_t of_arguments) const {
  for (size_t k = 0; k < of_arguments; ++k)
    if (shared(*written[k])) return true;
  for (const at::Tensor& argument : *arguments_) {
    if (!argument.defined() || !shared(argument)) continue;
    for (size_t k = of_arguments; k < written.size(); ++k)
      if (memory_of(*written[k]) == memory_of(argument) && !written[k]->is_same(argument)) return true;
  }
  return false;
}

}  // namespace ortmodule

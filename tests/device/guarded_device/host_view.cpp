#include "host_view.h"

#include <ATen/ops/from_blob.h>

#include <optional>
#include <utility>

#include "memory.h"

namespace guarded {

thread_local int OwnWork::depth = 0;

at::Tensor loose_view(const at::Tensor& x) {
  at::Tensor view =
      at::from_blob(within_reach(x.data_ptr()), x.sizes(), x.strides(), at::TensorOptions(x.scalar_type()));
  view._set_conj(x.is_conj());
  view._set_neg(x.is_neg());
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

at::Tensor host_view(const at::Tensor& x) { return x.is_cpu() ? x : loose_view(x); }

c10::IValue map_tensors(const c10::IValue& value, const Mapping& mapping) {
  const auto mapped = [&](const at::Tensor& t) { return t.defined() ? mapping(t) : t; };
  if (value.isTensor()) return mapped(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(mapped(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      out.push_back(t ? std::optional<at::Tensor>(mapped(*t)) : std::nullopt);
    return out;
  }
  return value;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> out;
  map_tensors(value, [&](const at::Tensor& t) {
    out.push_back(t);
    return t;
  });
  return out;
}

torch::jit::Stack map_stack(const torch::jit::Stack& stack, const Mapping& mapping) {
  std::vector<std::pair<at::Tensor, at::Tensor>> seen;
  const auto once_each = [&](const at::Tensor& t) {
    for (const auto& [from, to] : seen)
      if (from.is_same(t)) return to;
    seen.emplace_back(t, mapping(t));
    return seen.back().second;
  };
  torch::jit::Stack out;
  for (const c10::IValue& value : stack) out.push_back(map_tensors(value, once_each));
  return out;
}

}  // namespace guarded

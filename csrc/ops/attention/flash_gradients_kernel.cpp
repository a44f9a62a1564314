#include "ops/attention/flash_gradients.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/strided_view.h"

namespace ortmodule {
namespace {

// The result lies in memory as the input does, so that views of one tensor get gradients of one shape.
at::Tensor like(const at::Tensor& t) {
  if (t.stride(1) < t.stride(2) && t.stride(3) == 1)
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  return at::empty(t.sizes(), t.options());
}

// Whether q, k and v are the parts of one dense [batch, length, heads * size] tensor, side by side in any order: what a
// joint projection gives, split up. `first`: where it begins.
bool are_joint(const FlashInputs& in, int64_t& first) {
  std::array<const at::Tensor*, 3> parts{&in.q, &in.k, &in.v};
  std::ranges::sort(parts, {}, [](const at::Tensor* t) { return t->storage_offset(); });
  first = parts[0]->storage_offset();
  int64_t row = 0;
  for (const at::Tensor* t : parts) {
    if (!t->is_alias_of(in.q) || t->size(2) != in.q.size(2) || t->storage_offset() != first + row) return false;
    row += t->size(1) * t->size(3);
  }
  return std::ranges::all_of(parts, [&](const at::Tensor* t) {
    const int64_t strides[4] = {row * t->size(2), t->size(3), row, 1};
    return t->strides().equals(strides);
  });
}

}  // namespace

std::array<at::Tensor, 3> gradients_like(const FlashInputs& in, const FlashWants& wants) {
  int64_t first = 0;
  if (!(wants.q && wants.k && wants.v && are_joint(in, first)))
    return {wants.q ? like(in.q) : at::Tensor(), wants.k ? like(in.k) : at::Tensor(),
            wants.v ? like(in.v) : at::Tensor()};
  const at::Tensor all = at::empty({in.q.size(0) * in.q.stride(0)}, in.q.options());
  const auto part = [&](const at::Tensor& t) {
    return strided_view(all, t.sizes(), t.strides(), t.storage_offset() - first);
  };
  return {part(in.q), part(in.k), part(in.v)};
}

}  // namespace ortmodule

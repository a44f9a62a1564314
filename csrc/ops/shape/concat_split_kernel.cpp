// ATen kernels of Concat and Split; the parts of a Split are views.
//
// Note [Neighbours in memory]
// A kernel may write what is going to be joined side by side into one buffer: the gradients of a joint projection's
// parts, say. Where they are all of it, nobody else holds it and nobody reads them any more, the whole is a view of it.
// In forward it must be contiguous too, since it may be what the user gets; backward takes any order of axes.
#include <ATen/ops/cat.h>

#include <algorithm>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/strided_view.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Whether `t` lies beside `first` but for what differs along the axis.
bool is_alike(const at::Tensor& first, const at::Tensor& t, int64_t axis) {
  if (t.dim() != first.dim() || t.scalar_type() != first.scalar_type() || t.key_set() != first.key_set() ||
      !t.is_alias_of(first))
    return false;
  for (int64_t i = 0; i < t.dim(); ++i)
    if (i != axis && (t.size(i) != first.size(i) || (t.size(i) != 1 && t.stride(i) != first.stride(i)))) return false;
  return true;
}

// The inputs as one view of the buffer that they share: see the note above. Undefined where they are no neighbours.
at::Tensor joined(const KernelContext& c, int64_t given, bool contiguous) {
  const at::Tensor& first = c.in(0);
  const size_t count = c.input_count();
  if (count < 2 || first.layout() != at::kStrided || !first.has_storage() || first.storage().use_count() != count)
    return {};
  const int64_t axis = given < 0 ? given + first.dim() : given;
  if (axis < 0 || axis >= first.dim() || first.size(axis) == 0) return {};
  const int64_t step = first.size(axis) > 1 ? first.stride(axis) : c.in(1).storage_offset() - first.storage_offset();
  c10::DimVector sizes(first.sizes()), strides(first.strides());
  sizes[axis] = 0;
  strides[axis] = step;
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& t = c.in(i);
    if (!c.is_last_reader(i) || !is_alike(first, t, axis) || (t.size(axis) > 1 && t.stride(axis) != step) ||
        t.storage_offset() != first.storage_offset() + sizes[axis] * step)
      return {};
    sizes[axis] += t.size(axis);
  }
  at::Tensor whole = strided_view(first, sizes, strides, first.storage_offset());
  const bool fits = contiguous ? whole.is_contiguous() : whole.is_non_overlapping_and_dense();
  return fits && whole.nbytes() == whole.storage().nbytes() ? whole : at::Tensor();
}

// at::cat, of contiguous inputs as matrices: of more than four axes a GPU copies one input after the other.
at::Tensor concatenated(const KernelContext& c, int64_t axis) {
  const at::Tensor& first = c.in(0);
  c10::SmallVector<at::Tensor, 8> parts;
  for (size_t i = 0; i < c.input_count(); ++i) parts.push_back(c.in(i));
  const auto joined = [&](int64_t along) { return at::cat(at::TensorList(parts.data(), parts.size()), along); };
  if (first.is_cpu() || first.dim() <= 4) return joined(axis);
  const int64_t along = positive_axis(axis, first.dim(), "Concat");
  c10::DimVector sizes(first.sizes());
  sizes[along] = 0;
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous() || part.dim() != first.dim()) return joined(axis);
    for (int64_t d = 0; d < part.dim(); ++d)
      if (d != along && part.size(d) != first.size(d)) return joined(axis);
    sizes[along] += part.size(along);
  }
  const int64_t rows = c10::multiply_integers(sizes.begin(), sizes.begin() + along);
  for (at::Tensor& part : parts) part = part.view({rows, part.numel() / std::max<int64_t>(rows, 1)});
  return joined(1).view(sizes);
}

ORTMODULE_KERNEL("", Concat, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  const bool contiguous = node.phase() == Phase::kForward;
  return [axis, contiguous](KernelContext& c) {
    if (at::Tensor whole = joined(c, axis, contiguous); whole.defined()) return c.out(0, std::move(whole));
    c.out(0, concatenated(c, axis));
  };
});

ORTMODULE_KERNEL("", Split, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  const int64_t parts = std::max<int64_t>(1, node.get_int("num_outputs", static_cast<int64_t>(node.outputs().size())));
  return [sizes = HostInts(node, 1), axis, parts](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    const int64_t along = positive_axis(axis, x.dim(), "Split"), total = x.size(along);
    c10::DimVector part(x.sizes());
    c10::DimVector storage;
    const c10::IntArrayRef given = sizes.read(c, storage);
    ORTMODULE_CHECK(!sizes.present() || given.size() >= c.output_count(), kRuntime, "[Split] ", given.size(),
                    " sizes for ", c.output_count(), " outputs");
    const int64_t chunk = (total + parts - 1) / parts;
    int64_t at = 0;
    for (size_t i = 0; i < c.output_count(); ++i) {
      const int64_t size = sizes.present() ? given[i] : std::max<int64_t>(std::min(chunk, total - at), 0);
      ORTMODULE_CHECK(size >= 0 && size <= total - at, kRuntime, "[Split] the sizes exceed the axis' size of ", total);
      part[along] = size;
      if (c.wants(i)) c.out(i, strided_view(x, part, x.strides(), x.storage_offset() + at * x.stride(along)));
      at += size;
    }
    if (sizes.present())
      for (size_t i = c.output_count(); i < given.size() && given[i] >= 0 && given[i] <= total - at; ++i)
        at += given[i];
    ORTMODULE_CHECK(at == total, kRuntime, "[Split] the sizes sum to ", at, ", the axis has size ", total);
  };
});

}  // namespace
}  // namespace ortmodule

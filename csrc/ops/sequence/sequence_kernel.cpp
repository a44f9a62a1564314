// Kernels of the sequence operators. An element is shared by the sequences that hold it; nothing copies it.
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/split.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/stack.h>

#include <numeric>

#include "base/container_type.h"
#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/sequence_value.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

at::ScalarType output_element(const Node& node) { return to_scalar_type(element_of(node.output(0)->type().dtype)); }

// Input `input` as a position in [-size, size] (or below size when `inside`), made non-negative; `fallback` if absent.
size_t position(const KernelContext& c, size_t input, size_t size, bool inside, size_t fallback, const char* op) {
  if (!c.has(input)) {
    ORTMODULE_CHECK(!inside || size > 0, kRuntime, "[", op, "] the sequence is empty");
    return fallback;
  }
  ORTMODULE_CHECK(c.in(input).numel() == 1, kRuntime, "[", op, "] the position should be one integer, got ",
                  c.in(input).numel());
  const int64_t given = c.int_value(input), count = static_cast<int64_t>(size);
  ORTMODULE_CHECK(given >= -count && given < count + (inside ? 0 : 1), kRuntime, "[", op, "] position ", given,
                  " is outside a sequence of ", count, " elements");
  return static_cast<size_t>(given < 0 ? given + count : given);
}

ORTMODULE_KERNEL("", SequenceConstruct, "aten", [](const Node& node) -> Kernel {
  return [type = output_element(node)](KernelContext& c) {
    Tensors elements;
    for (size_t i = 0; i < c.input_count(); ++i) elements.push_back(c.in(i));
    c.out(0, make_sequence(std::move(elements), type));
  };
});

ORTMODULE_KERNEL("", SequenceEmpty, "aten", [](const Node& node) -> Kernel {
  return [type = output_element(node)](KernelContext& c) { c.out(0, make_sequence({}, type)); };
});

ORTMODULE_KERNEL("", SequenceInsert, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    Tensors elements = sequence_elements(c.in(0));
    const size_t at = position(c, 2, elements.size(), false, elements.size(), "SequenceInsert");
    elements.insert(elements.begin() + static_cast<long>(at), c.in(1));
    c.out(0, make_sequence(std::move(elements), sequence_element_type(c.in(0))));
  };
});

ORTMODULE_KERNEL("", SequenceErase, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    Tensors elements = sequence_elements(c.in(0));
    const size_t at = position(c, 1, elements.size(), true, elements.size() - 1, "SequenceErase");
    elements.erase(elements.begin() + static_cast<long>(at));
    c.out(0, make_sequence(std::move(elements), sequence_element_type(c.in(0))));
  };
});

ORTMODULE_KERNEL("", SequenceAt, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const Tensors& elements = sequence_elements(c.in(0));
    c.out(0, elements[position(c, 1, elements.size(), true, 0, "SequenceAt")]);
  };
});

ORTMODULE_KERNEL("", SequenceLength, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    c.out(0, at::scalar_tensor(static_cast<int64_t>(sequence_elements(c.in(0)).size()), at::kLong));
  };
});

// One element per slice without `split` (keepdims tells whether the axis stays); with a scalar, chunks of that size,
// the last one smaller; with a vector, chunks of these sizes.
Tensors split(const KernelContext& c, int64_t axis, bool keepdims) {
  const at::Tensor& x = c.in(0);
  const int64_t at = positive_axis(axis, x.dim(), "SplitToSequence");
  if (!c.has(1)) {
    Tensors parts = x.size(at) ? at::split(x, 1, at) : Tensors{};
    if (!keepdims)
      for (at::Tensor& part : parts) part = part.select(at, 0);
    return parts;
  }
  const std::vector<int64_t> sizes = c.ints(1);
  if (c.in(1).dim() == 0) {
    ORTMODULE_CHECK(sizes[0] > 0, kRuntime, "[SplitToSequence] a chunk should have a positive size, got ", sizes[0]);
    return x.size(at) ? at::split(x, sizes[0], at) : Tensors{};
  }
  int64_t total = 0;
  for (const int64_t size : sizes) {
    ORTMODULE_CHECK(size >= 0 && size <= x.size(at), kRuntime, "[SplitToSequence] a chunk of size ", size, " of ",
                    x.size(at));
    total += size;
    ORTMODULE_CHECK(total <= x.size(at), kRuntime, "[SplitToSequence] the chunks are larger than the axis of ",
                    x.size(at));
  }
  ORTMODULE_CHECK(total == x.size(at), kRuntime, "[SplitToSequence] the chunks hold ", total, " of ", x.size(at));
  return at::split_with_sizes(x, sizes, at);
}

ORTMODULE_KERNEL("", SplitToSequence, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 0), keepdims = node.get_int("keepdims", 1) != 0](KernelContext& c) {
    c.out(0, make_sequence(split(c, axis, keepdims), c.in(0).scalar_type()));
  };
});

ORTMODULE_KERNEL("", ConcatFromSequence, "aten", [](const Node& node) -> Kernel {
  return [axis = node.get_int("axis", 0), new_axis = node.get_int("new_axis", 0) != 0](KernelContext& c) {
    const Tensors& elements = sequence_elements(c.in(0));
    ORTMODULE_CHECK(!elements.empty(), kRuntime, "[ConcatFromSequence] the sequence is empty");
    const int64_t at = positive_axis(axis, elements[0].dim() + (new_axis ? 1 : 0), "ConcatFromSequence");
    c.out(0, new_axis ? at::stack(elements, at) : at::cat(elements, at));
  };
});

}  // namespace
}  // namespace ortmodule

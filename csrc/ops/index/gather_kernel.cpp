// ATen kernels of Gather, Embedding and their gradients.
#include <ATen/Parallel.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/typed_error.h"
#include "kernels/cpu_simd.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/index/positions.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// The position when it is a constant scalar: torch's select.
std::optional<int64_t> constant_position(const Node& node, size_t input) {
  const NodeArg* value = node.input(input);
  if (!value || !value->constant() || !value->constant()->dims.empty()) return std::nullopt;
  return value->constant()->to_ints().at(0);
}

// sizes[:axis] + middle + sizes[axis+1:]
c10::DimVector replace_axis(c10::IntArrayRef sizes, int64_t axis, c10::IntArrayRef middle) {
  c10::DimVector out(sizes.begin(), sizes.begin() + axis);
  out.append(middle.begin(), middle.end());
  out.append(sizes.begin() + axis + 1, sizes.end());
  return out;
}

at::Tensor gather(const at::Tensor& x, const at::Tensor& indices, int64_t axis) {
  if (!x.device().is_cpu()) {
    // Advanced indexing takes negative positions without a look at them.
    c10::List<std::optional<at::Tensor>> list;
    for (int64_t i = 0; i < axis; ++i) list.push_back(std::optional<at::Tensor>());
    list.push_back(as_int64(indices));
    return at::index(x, list);
  }
  const at::Tensor positions = checked_positions(indices, x.size(axis));
  if (axis == 0 && x.dim() == 2) return at::embedding(x, positions);
  if (positions.dim() == 1) return at::index_select(x, axis, positions);
  return at::index_select(x, axis, positions.reshape({-1})).view(replace_axis(x.sizes(), axis, positions.sizes()));
}

ORTMODULE_KERNEL("", Gather, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  if (const auto position = constant_position(node, 1))
    return [axis, at = *position](KernelContext& c) { c.out(0, c.in(0).select(axis, at)); };
  return [axis](KernelContext& c) { c.out(0, gather(c.in(0), c.in(1), positive_axis(axis, c.in(0).dim(), "Gather"))); };
});

// Rows of dY summed by position into a tensor of `sizes`; the positions count along `axis`.
at::Tensor scatter_rows(const at::Tensor& dy, const at::Tensor& indices, c10::IntArrayRef sizes, int64_t axis) {
  const at::Tensor positions = wrap_negative(indices, sizes[static_cast<size_t>(axis)]);
  if (axis == 0) {
    int64_t width = 1;
    for (size_t i = 1; i < sizes.size(); ++i) width *= sizes[i];
    const int64_t rows = positions.numel();
    // Negative positions are gone, so -1 pads nothing.
    return at::embedding_dense_backward(dy.reshape({rows, width}), positions.reshape({rows}), sizes[0], -1, false)
        .view(sizes);
  }
  const at::Tensor flat = dy.reshape(replace_axis(sizes, axis, {positions.numel()}));
  return at::zeros(sizes, dy.options()).index_add_(axis, positions.reshape({-1}), flat);
}

// Columns [begin, end) of row r of `dy` added to row positions[r] of `to`, in the order of the rows.
ORTMODULE_SIMD void add_columns(const float* dy, const int64_t* positions, int64_t rows, int64_t width, int64_t skipped,
                                float* to, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < rows; ++r) {
    if (positions[r] == skipped) continue;
    const float* from = dy + r * width;
    float* sum = to + positions[r] * width;
    for (int64_t c = begin; c < end; ++c) sum[c] += from[c];
  }
}

// Adds dy[rows, width] to `sums`[n, width] by position, but for rows whose position is `skipped`. A thread has columns
// of its own, so that any number of threads gives the same bits.
void add_rows(at::Tensor& sums, const at::Tensor& dy, const at::Tensor& positions, int64_t skipped, const char* op) {
  const int64_t rows = positions.numel(), width = sums.size(1);
  if (!sums.is_cpu() || sums.scalar_type() != at::kFloat || !sums.is_contiguous()) {
    const at::Tensor kept = skipped < 0 ? dy : dy.masked_fill(positions.eq(skipped).unsqueeze(1), 0);
    sums.index_add_(0, positions, kept);
    return;
  }
  const at::Tensor from = dy.contiguous(), list = positions.contiguous();
  const auto* data = from.const_data_ptr<float>();
  const auto* at = list.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r)
    ORTMODULE_CHECK_INDEX(at[r] >= 0 && at[r] < sums.size(0), "[", op, "] position ", at[r], " is outside of ",
                          sums.size(0), " rows");
  auto* to = sums.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(64, 32768 / std::max<int64_t>(1, rows));
  at::parallel_for(0, width, grain,
                   [&](int64_t begin, int64_t end) { add_columns(data, at, rows, width, skipped, to, begin, end); });
}

// The tensor that a gradient is added to: the given one where its memory may be taken.
at::Tensor own_base(KernelContext& c, c10::IntArrayRef sizes, const char* op) {
  ORTMODULE_CHECK(c.in(3).sizes() == sizes, kRuntime, "[", op, "] base of shape ", c.in(3).sizes(), " for sizes ",
                  sizes);
  return c.may_overwrite(3) ? c.in(3) : c.in(3).clone();
}

at::Tensor scatter_onto(at::Tensor sums, const at::Tensor& dy, const at::Tensor& indices, int64_t axis) {
  const at::Tensor positions = wrap_negative(indices, sums.size(axis)).reshape({-1});
  if (axis > 0) {
    sums.index_add_(axis, positions, dy.reshape(replace_axis(sums.sizes(), axis, {positions.numel()})));
  } else if (sums.numel() > 0) {
    const int64_t width = sums.numel() / sums.size(0);
    at::Tensor rows = sums.view({sums.size(0), width});
    add_rows(rows, dy.reshape({positions.numel(), width}), positions, -1, "GatherGrad");
  }
  return sums;
}

ORTMODULE_KERNEL("ai.ortmodule", GatherGrad, "aten", [](const Node& node) -> Kernel {
  const int64_t given = node.get_int("axis", 0);
  return [given, sizes = HostInts(node, 2), position = constant_position(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    const int64_t axis = positive_axis(given, static_cast<int64_t>(target.size()), "GatherGrad");
    if (position) {
      at::Tensor dx = c.has(3) ? own_base(c, target, "GatherGrad") : at::zeros(target, c.in(0).options());
      dx.select(axis, *position).add_(c.in(0));
      c.out(0, std::move(dx));
    } else if (c.has(3)) {
      c.out(0, scatter_onto(own_base(c, target, "GatherGrad"), c.in(0), c.in(1), axis));
    } else {
      c.out(0, scatter_rows(c.in(0), c.in(1), target, axis));
    }
  };
});

ORTMODULE_KERNEL("ai.ortmodule", Embedding, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::embedding(c.in(0), c.in(1))); };
});

ORTMODULE_KERNEL("ai.ortmodule", EmbeddingGrad, "aten", [](const Node& node) -> Kernel {
  const int64_t padding = node.get_int("padding_idx", -1);
  return [padding, sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    if (c.has(3)) {
      at::Tensor sums = own_base(c, target, "EmbeddingGrad");
      const at::Tensor positions = as_int64(c.in(1)).reshape({-1});
      add_rows(sums, c.in(0).reshape({positions.numel(), sums.size(1)}), positions, padding, "EmbeddingGrad");
      return c.out(0, std::move(sums));
    }
    const int64_t rows = target.at(0);
    c.out(0, at::embedding_dense_backward(c.in(0), c.in(1), rows, padding < 0 ? -1 : padding, false));
  };
});

}  // namespace
}  // namespace ortmodule

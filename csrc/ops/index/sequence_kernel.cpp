// ATen kernels of Compress, ReverseSequence, TensorScatter, Scatter and Unique.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/index/positions.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// `axis` of an operator that works on the flattened input when it is absent.
struct OptionalAxis {
  std::optional<int64_t> given;

  explicit OptionalAxis(const Node& node) {
    if (node.find_attribute("axis")) given = node.get_int("axis", 0);
  }
  at::Tensor view(const at::Tensor& x) const { return given ? x : x.reshape(-1); }
  int64_t in(int64_t rank, const char* op) const { return given ? positive_axis(*given, rank, op) : 0; }
};

// Zeros of the given sizes with dY added at positions along the axis.
at::Tensor put_back(const at::Tensor& dy, const at::Tensor& positions, c10::IntArrayRef sizes, const OptionalAxis& axis,
                    const char* op) {
  at::Tensor dx = at::zeros(sizes, dy.options());
  axis.view(dx).index_add_(axis.in(static_cast<int64_t>(sizes.size()), op), positions, dy);
  return dx;
}

at::Tensor chosen(const at::Tensor& condition, int64_t size) {
  ORTMODULE_CHECK(condition.dim() == 1, kRuntime, "[Compress] condition should have one axis, got ", condition.sizes());
  return at::nonzero(condition.slice(0, 0, size)).squeeze(1);
}

Kernel make_compress(const Node& node) {
  return [axis = OptionalAxis(node)](KernelContext& c) {
    const at::Tensor x = axis.view(c.in(0));
    const int64_t along = axis.in(x.dim(), "Compress");
    c.out(0, at::index_select(x, along, chosen(c.in(1), x.size(along))));
  };
}

Kernel make_compress_grad(const Node& node) {
  return [axis = OptionalAxis(node), sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef x = sizes.read(c, storage);
    int64_t size = 1;
    for (int64_t d : x) size *= d;
    if (axis.given) size = x[static_cast<size_t>(axis.in(static_cast<int64_t>(x.size()), "CompressGrad"))];
    c.out(0, put_back(c.in(0), chosen(c.in(1), size), x, axis, "CompressGrad"));
  };
}

Kernel make_reverse_sequence(const Node& node) {
  return [batch = node.get_int("batch_axis", 1), time = node.get_int("time_axis", 0)](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    ORTMODULE_CHECK(x.dim() >= 2 && c.in(1).dim() == 1 && c.in(1).size(0) == x.size(batch), kRuntime,
                    "[ReverseSequence] sequence_lens ", c.in(1).sizes(), " do not fit an input of shape ", x.sizes());
    const int64_t steps = x.size(time);
    const at::Tensor lengths = as_int64(c.in(1)).clamp(0, steps).unsqueeze(batch == 0 ? 1 : 0);
    const at::Tensor step = at::arange(steps, lengths.options()).unsqueeze(time == 0 ? 1 : 0);
    at::Tensor from = at::where(at::lt(step, lengths), lengths.sub(1).sub(step), step);
    for (int64_t i = 2; i < x.dim(); ++i) from = from.unsqueeze(-1);
    c.out(0, at::gather(x, time, from.expand(x.sizes())));
  };
}

// Where the elements of an update of the given sizes lie along the cache's axis: [batch, 1..., n, 1...], expanded.
at::Tensor written(const KernelContext& c, size_t slot, const at::Tensor& cache, c10::IntArrayRef update, int64_t axis,
                   bool circular) {
  ORTMODULE_CHECK(static_cast<int64_t>(update.size()) == cache.dim() && axis > 0, kRuntime,
                  "[TensorScatter] past_cache ", cache.sizes(), ", update ", update, " and axis ", axis, " do not fit");
  for (int64_t i = 0; i < cache.dim(); ++i)
    ORTMODULE_CHECK(i == axis ? update[i] <= cache.size(i) : update[i] == cache.size(i), kRuntime,
                    "[TensorScatter] an update of shape ", update, " does not fit a cache of shape ", cache.sizes());
  const int64_t size = cache.size(axis), count = update[static_cast<size_t>(axis)];
  at::Tensor places = at::arange(count, cache.options().dtype(at::kLong)).unsqueeze(0);
  if (c.has(slot)) {
    const at::Tensor starts = as_int64(c.in(slot));
    ORTMODULE_CHECK(starts.dim() == 1 && starts.size(0) == update[0], kRuntime, "[TensorScatter] expected ", update[0],
                    " write_indices, got ", starts.sizes());
    if (!circular && starts.device().is_cpu() && starts.numel() > 0 && count > 0)
      ORTMODULE_CHECK(starts.min().item<int64_t>() >= 0 && starts.max().item<int64_t>() <= size - count, kRuntime,
                      "[TensorScatter] write_indices leave the cache of ", size, " places");
    places = places.add(starts.unsqueeze(1));
  }
  if (circular) places = places.remainder(size);
  for (int64_t i = 1; i < axis; ++i) places = places.unsqueeze(1);
  for (int64_t i = axis + 1; i < cache.dim(); ++i) places = places.unsqueeze(-1);
  return places.expand(update);
}

bool is_circular(const Node& node) {
  const std::string mode = node.get_string("mode", "linear");
  ORTMODULE_CHECK_GRAPH(mode == "linear" || mode == "circular", "[TensorScatter] unknown mode '", mode, "' (",
                        node.describe(), ")");
  return mode == "circular";
}

Kernel make_tensor_scatter(const Node& node) {
  return [given = node.get_int("axis", -2), circular = is_circular(node)](KernelContext& c) {
    const int64_t axis = positive_axis(given, c.in(0).dim(), "TensorScatter");
    const at::Tensor places = written(c, 2, c.in(0), c.in(1).sizes(), axis, circular);
    at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
    c.out(0, y.scatter_(axis, places, c.in(1)));
  };
}

Kernel make_tensor_scatter_grad(const Node& node) {
  return [given = node.get_int("axis", -2), circular = is_circular(node), clears = node.get_int("clears", 0) != 0,
          sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const at::Tensor& dy = c.in(0);
    const int64_t axis = positive_axis(given, dy.dim(), "TensorScatterGrad");
    const at::Tensor places = written(c, 2, dy, sizes.read(c, storage), axis, circular);
    c.out(0, clears ? dy.clone().scatter_(axis, places, 0) : at::gather(dy, axis, places));
  };
}

Kernel make_scatter(const Node& node) {
  return [given = node.get_int("axis", 0)](KernelContext& c) {
    const int64_t axis = positive_axis(given, c.in(0).dim(), "Scatter");
    const at::Tensor positions = wrap_negative(c.in(1), c.in(0).size(axis));
    at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
    c.out(0, y.scatter_(axis, positions, c.in(2)));
  };
}

Kernel make_unique(const Node& node) {
  return [axis = OptionalAxis(node), sorted = node.get_int("sorted", 1) != 0](KernelContext& c) {
    const at::Tensor x = axis.view(c.in(0));
    const int64_t along = axis.in(x.dim(), "Unique");
    auto [y, inverse, counts] =
        axis.given ? at::unique_dim(x, along, true, true, true) : at::_unique2(x, true, true, true);
    inverse = inverse.reshape(-1);
    const int64_t size = x.size(along);
    at::Tensor first = at::full({y.size(along)}, size, inverse.options());
    first.scatter_reduce_(0, inverse, at::arange(size, inverse.options()), "amin");
    if (!sorted) {
      const at::Tensor order = at::argsort(first);
      const at::Tensor rank = at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
      y = y.index_select(along, order);
      inverse = rank.index_select(0, inverse);
      counts = counts.index_select(0, order);
      first = first.index_select(0, order);
    }
    c.out(0, std::move(y));
    c.out(1, std::move(first));
    c.out(2, std::move(inverse));
    c.out(3, std::move(counts));
  };
}

Kernel make_unique_grad(const Node& node) {
  return [axis = OptionalAxis(node), sizes = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    c.out(0, put_back(c.in(0), c.in(1), sizes.read(c, storage), axis, "UniqueGrad"));
  };
}

ORTMODULE_KERNEL("", Compress, "aten", make_compress);
ORTMODULE_KERNEL("ai.ortmodule", CompressGrad, "aten", make_compress_grad);
ORTMODULE_KERNEL("", ReverseSequence, "aten", make_reverse_sequence);
ORTMODULE_KERNEL("", TensorScatter, "aten", make_tensor_scatter).inplace();
ORTMODULE_KERNEL("ai.ortmodule", TensorScatterGrad, "aten", make_tensor_scatter_grad);
ORTMODULE_KERNEL("", Scatter, "aten", make_scatter).inplace();
ORTMODULE_KERNEL("", Unique, "aten", make_unique);
ORTMODULE_KERNEL("ai.ortmodule", UniqueGrad, "aten", make_unique_grad);

}  // namespace
}  // namespace ortmodule

// ATen kernels of GatherND, ScatterND, Index, IndexPut and NonZero, all through advanced indexing.
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scatter_reduce.h>
#include <ATen/ops/zeros.h>

#include "base/typed_error.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/index/positions.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using IndexList = c10::List<std::optional<at::Tensor>>;

// indices[..., k] per axis, behind the batch axes' own counters.
IndexList tuples(const at::Tensor& given, int64_t batch_dims) {
  const at::Tensor indices = as_int64(given);
  IndexList list;
  const int64_t lead = indices.dim() - 1;
  for (int64_t b = 0; b < batch_dims; ++b) {
    c10::DimVector along(static_cast<size_t>(lead), 1);
    along[static_cast<size_t>(b)] = indices.size(b);
    list.push_back(at::arange(indices.size(b), indices.options()).view(along));
  }
  for (int64_t k = 0; k < indices.size(-1); ++k) list.push_back(indices.select(-1, k));
  return list;
}

ORTMODULE_KERNEL("", GatherND, "aten", [](const Node& node) -> Kernel {
  const int64_t batch = node.get_int("batch_dims", 0);
  return [batch](KernelContext& c) { c.out(0, at::index(c.in(0), tuples(c.in(1), batch))); };
});

// Indices are input 1.
template <size_t gradient, size_t shape>
Kernel gather_nd_grad(const Node& node) {
  const int64_t batch = node.get_int("batch_dims", 0);
  return [batch, sizes = HostInts(node, shape)](KernelContext& c) {
    c10::DimVector storage;
    at::Tensor dx = at::zeros(sizes.read(c, storage), c.in(gradient).options());
    c.out(0, dx.index_put_(tuples(c.in(1), batch), c.in(gradient), true));
  };
}

ORTMODULE_KERNEL("ai.ortmodule", GatherNDGrad, "aten", gather_nd_grad<0, 2>);
ORTMODULE_KERNEL("com.microsoft", GatherNDGrad, "aten", gather_nd_grad<2, 0>);

// Rows of the data that the tuples name, as numbers; the data's first axes are taken as one. Positions are checked
// where a look at them waits for no device: beyond its axis one would name another row.
at::Tensor row_numbers(const at::Tensor& given, c10::IntArrayRef sizes) {
  const at::Tensor indices = as_int64(given);
  at::Tensor rows = at::zeros(indices.sizes().slice(0, static_cast<size_t>(indices.dim()) - 1), indices.options());
  for (int64_t k = 0; k < indices.size(-1); ++k) {
    const int64_t size = sizes[static_cast<size_t>(k)];
    const at::Tensor positions = wrap_negative(indices.select(-1, k), size);
    if (positions.is_cpu() && positions.numel() > 0) {
      const auto [low, high] = at::aminmax(positions);
      ORTMODULE_CHECK_INDEX(low.item<int64_t>() >= 0 && high.item<int64_t>() < size, "[ScatterND] a position of axis ",
                            k, " is outside its size of ", size);
    }
    rows = rows.mul(size).add(positions);
  }
  return rows.reshape({-1});
}

at::Tensor scatter_reduced(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& updates, const char* how) {
  const auto taken = static_cast<size_t>(indices.size(-1));
  const c10::IntArrayRef rest = x.sizes().slice(taken);
  const at::Tensor at = row_numbers(indices, x.sizes());
  c10::DimVector rows{1}, sources{at.numel()}, column{at.numel()};
  for (int64_t d : x.sizes().slice(0, taken)) rows[0] *= d;
  for (int64_t d : rest) {
    rows.push_back(d);
    sources.push_back(d);
    column.push_back(1);
  }
  const at::Tensor source = updates.reshape(sources);
  return at::scatter_reduce(x.reshape(rows), 0, at.reshape(column).expand_as(source), source, how).view(x.sizes());
}

ORTMODULE_KERNEL("", ScatterND, "aten", [](const Node& node) -> Kernel {
  const std::string reduction = node.get_string("reduction", "none");
  if (reduction == "none" || reduction == "add") {
    return [adds = reduction == "add"](KernelContext& c) {
      at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
      c.out(0, y.index_put_(tuples(c.in(1), 0), c.in(2), adds));
    };
  }
  const char* how = reduction == "mul" ? "prod" : reduction == "max" ? "amax" : reduction == "min" ? "amin" : nullptr;
  ORTMODULE_CHECK_GRAPH(how, "[ScatterND] unknown reduction '", reduction, "' (", node.describe(), ")");
  return [how](KernelContext& c) { c.out(0, scatter_reduced(c.in(0), c.in(1), c.in(2), how)); };
}).inplace();

// Index tensors from input `first` on, each at its axis; axes between them stay whole.
class AxisIndices {
 public:
  AxisIndices(const Node& node, size_t first) : first_(first), dims_(node.get_ints("dims")) {
    ORTMODULE_CHECK_GRAPH(first + dims_.size() == node.inputs().size(), "[", node.op(), "] ",
                          node.inputs().size() - first, " index tensors for ", dims_.size(), " axes (", node.describe(),
                          ")");
  }

  IndexList read(const KernelContext& c, int64_t rank) const {
    IndexList list;
    for (size_t k = 0; k < dims_.size(); ++k) {
      const int64_t axis = positive_axis(dims_[k], rank, "Index");
      while (static_cast<int64_t>(list.size()) <= axis) list.push_back(std::optional<at::Tensor>());
      list.set(static_cast<size_t>(axis), as_int64(c.in(first_ + k)));
    }
    return list;
  }

 private:
  size_t first_;
  std::vector<int64_t> dims_;
};

ORTMODULE_KERNEL("ai.ortmodule", Index, "aten", [](const Node& node) -> Kernel {
  return [indices = AxisIndices(node, 1)](KernelContext& c) {
    c.out(0, at::index(c.in(0), indices.read(c, c.in(0).dim())));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", IndexGrad, "aten", [](const Node& node) -> Kernel {
  return [sizes = HostInts(node, 1), indices = AxisIndices(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    at::Tensor dx = at::zeros(sizes.read(c, storage), c.in(0).options());
    c.out(0, dx.index_put_(indices.read(c, dx.dim()), c.in(0), true));
  };
});

ORTMODULE_KERNEL("ai.ortmodule", IndexPut, "aten", [](const Node& node) -> Kernel {
  const bool accumulate = node.get_int("accumulate", 0) != 0;
  return [accumulate, indices = AxisIndices(node, 2)](KernelContext& c) {
    at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
    c.out(0, y.index_put_(indices.read(c, y.dim()), c.in(1), accumulate));
  };
}).inplace();

ORTMODULE_KERNEL("", NonZero, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, at::nonzero(c.in(0)).t()); }; });

}  // namespace
}  // namespace ortmodule

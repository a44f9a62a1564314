// ATen kernels of the reductions.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "ops/reduce/mean_of_pictures.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// compute(x, axes, keepdims) with `axes` never empty, except for a 0-d x. An empty list that means "no axis" becomes
// a reduction over an added axis of size one, so that the operator's own function (a square, a norm) still applies.
template <typename Compute>
Kernel reduction(const Node& node, Compute compute) {
  const bool keep = node.get_int("keepdims", 1) != 0, noop = node.get_int("noop_with_empty_axes", 0) != 0;
  return [axes = HostInts(node, 1), keep, noop, compute](KernelContext& c) {
    c10::DimVector storage;
    c10::IntArrayRef list = axes.read(c, storage);
    const at::Tensor& x = c.in(0);
    if (list.empty() && noop) {
      c.out(0, compute(x.unsqueeze(-1), c10::IntArrayRef{-1}, false));
      return;
    }
    if (list.empty()) {
      storage.resize(x.dim());
      std::iota(storage.begin(), storage.end(), 0);
      list = storage;
    }
    c.out(0, compute(x, list, keep));
  };
}

ORTMODULE_KERNEL("", ReduceSum, "aten", [](const Node& node) -> Kernel {
  return reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    return at::sum(x, axes, keep, x.scalar_type());
  });
});

// Means and norms of integers go through doubles and are cut to whole numbers.
template <typename Compute>
Kernel floating_reduction(const Node& node, Compute compute) {
  return reduction(node, [compute](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    if (at::isFloatingType(x.scalar_type())) return compute(x, axes, keep);
    return compute(x.to(at::kDouble), axes, keep).to(x.scalar_type());
  });
}

ORTMODULE_KERNEL("", ReduceMean, "aten", [](const Node& node) -> Kernel {
  return floating_reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    at::Tensor means = mean_of_pictures(x, axes, keep);
    return means.defined() ? means : at::mean(x, axes, keep);
  });
});

// What the extreme of no element is: the type's own limit, an infinity for floats.
at::Scalar limit(at::ScalarType type, bool lowest) {
  if (at::isFloatingType(type)) return lowest ? -INFINITY : INFINITY;
  if (type == at::kBool) return !lowest;
  return AT_DISPATCH_INTEGRAL_TYPES(type, "limit", [&]() -> at::Scalar {
    return lowest ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
}

template <at::Tensor (*extreme)(const at::Tensor&, c10::IntArrayRef, bool), bool is_max>
Kernel make_extreme(const Node& node) {
  return reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    if (x.numel() > 0) return extreme(x, axes, keep);
    // The sizes are those of a sum, which takes empty axes.
    const at::Tensor like = at::sum(x, axes, keep, x.scalar_type());
    return at::full(like.sizes(), limit(x.scalar_type(), is_max), x.options());
  });
}

ORTMODULE_KERNEL("", ReduceMax, "aten", make_extreme<at::amax, true>).rare_types(RareTypes::kOrdered);
ORTMODULE_KERNEL("", ReduceMin, "aten", make_extreme<at::amin, false>).rare_types(RareTypes::kOrdered);

ORTMODULE_KERNEL("ai.ortmodule", ReduceExtremeGrad, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) {
    const at::Tensor &dy = c.in(0), &x = c.in(1), &y = c.in(2);
    const at::Tensor chosen = at::eq(x, y);
    // The number of chosen elements per reduced group: summed over the axes that y lacks.
    const at::Tensor count = at::sum_to(chosen.to(dy.scalar_type()), y.sizes());
    c.out(0, at::mul(chosen, dy.div(count)));
  };
});

// Axes as non-negative numbers in falling order, so that removing one leaves the others in place.
c10::DimVector falling(c10::IntArrayRef axes, int64_t rank) {
  c10::DimVector out;
  for (int64_t a : axes) out.push_back(positive_axis(a, rank, "ReduceProd"));
  std::sort(out.begin(), out.end(), std::greater<int64_t>());
  return out;
}

ORTMODULE_KERNEL("", ReduceProd, "aten", [](const Node& node) -> Kernel {
  return reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    at::Tensor y = x;
    for (int64_t a : falling(axes, x.dim())) y = at::prod(y, a, keep, x.scalar_type());
    return axes.empty() ? y.clone() : y;
  });
});

// The derivative at an element is the product of all others. It is the product of those before and of those after,
// which needs no division and is right in the presence of zeros.
at::Tensor product_of_others(const at::Tensor& rows) {
  const int64_t n = rows.size(-1);
  at::Tensor before = at::ones_like(rows), after = at::ones_like(rows);
  if (n > 1) {
    before.narrow(-1, 1, n - 1).copy_(rows.narrow(-1, 0, n - 1).cumprod(-1));
    after.narrow(-1, 0, n - 1).copy_(rows.narrow(-1, 1, n - 1).flip(-1).cumprod(-1).flip(-1));
  }
  return before.mul_(after);
}

ORTMODULE_KERNEL("ai.ortmodule", ReduceProdGrad, "aten", [](const Node& node) -> Kernel {
  const bool noop = node.get_int("noop_with_empty_axes", 0) != 0;
  return [axes = HostInts(node, 2), noop](KernelContext& c) {
    const at::Tensor &dy = c.in(0), &x = c.in(1);
    c10::DimVector storage;
    const c10::IntArrayRef list = axes.read(c, storage);
    std::vector<bool> reduced(x.dim(), list.empty());
    if (list.empty() && noop) {
      c.out(0, dy.clone());
      return;
    }
    for (int64_t a : list) reduced[positive_axis(a, x.dim(), "ReduceProd")] = true;
    // Reduced axes last, flattened; the inverse permutation brings the result back.
    c10::DimVector order, back(x.dim());
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t i = 0; i < x.dim(); ++i)
        if (reduced[i] == (pass == 1)) order.push_back(i);
    c10::DimVector moved_sizes, rows;
    int64_t row = 1;
    for (int64_t i = 0; i < x.dim(); ++i) {
      back[order[i]] = i;
      moved_sizes.push_back(x.size(order[i]));
      if (reduced[order[i]])
        row *= x.size(order[i]);
      else
        rows.push_back(x.size(order[i]));
    }
    rows.push_back(row);
    const at::Tensor others = product_of_others(x.permute(order).reshape(rows)).reshape(moved_sizes).permute(back);
    c.out(0, at::mul(others, dy));
  };
});

ORTMODULE_KERNEL("", ReduceL1, "aten", [](const Node& node) -> Kernel {
  return floating_reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    return at::linalg_vector_norm(x, 1, axes, keep);
  });
});

ORTMODULE_KERNEL("", ReduceL2, "aten", [](const Node& node) -> Kernel {
  return floating_reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    return at::linalg_vector_norm(x, 2, axes, keep);
  });
});

ORTMODULE_KERNEL("", ReduceSumSquare, "aten", [](const Node& node) -> Kernel {
  return reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    return at::sum(at::mul(x, x), axes, keep, x.scalar_type());
  });
});

ORTMODULE_KERNEL("", ReduceLogSum, "aten", [](const Node& node) -> Kernel {
  return reduction(node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) {
    return at::log(at::sum(x, axes, keep, x.scalar_type()));
  });
});

ORTMODULE_KERNEL("", ReduceLogSumExp, "aten", [](const Node& node) -> Kernel {
  return floating_reduction(
      node, [](const at::Tensor& x, c10::IntArrayRef axes, bool keep) { return at::logsumexp(x, axes, keep); });
});

ORTMODULE_KERNEL("ai.ortmodule", ReduceSumTo, "aten", [](const Node& node) -> Kernel {
  return [sizes = HostInts(node, 1)](KernelContext& c) {
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    // ATen takes the least integers for pointers to symbols.
    const bool known = std::all_of(target.begin(), target.end(), [](int64_t size) { return size >= 0; });
    ORTMODULE_CHECK(known && at::is_expandable_to(target, c.in(0).sizes()), kRuntime, "[ReduceSumTo] ",
                    c10::str(target), " does not broadcast to ", c10::str(c.in(0).sizes()));
    c.out(0, at::sum_to(c.in(0), target));
  };
});

}  // namespace
}  // namespace ortmodule

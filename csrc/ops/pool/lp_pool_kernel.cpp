// ATen kernels of LpPool, GlobalLpPool and MaxUnpool.
//
// Windows are a strided view of the padded powers: nothing is copied before the sum.
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/host_values.h"
#include "kernels/rerun_kernel.h"
#include "ops/pool/window.h"

namespace ortmodule {
namespace {

at::Tensor lp_pool(const at::Tensor& given, const PoolAttributes& declared, int64_t p) {
  const at::ScalarType type = given.scalar_type();
  const at::Tensor x = given.to(computed_in(type));
  PoolAttributes a = declared;
  const size_t n = a.rank();
  ORTMODULE_CHECK(x.dim() == static_cast<int64_t>(n) + 2, kRuntime, "[LpPool] X of shape ", x.sizes(),
                  " does not fit a kernel_shape of ", n, " numbers");
  a.resolve_same(x.sizes().data() + 2);
  c10::DimVector sizes{x.size(0), x.size(1)};
  for (size_t i = 0; i < n; ++i) {
    const int64_t size = x.size(static_cast<int64_t>(i) + 2), span = size + a.pads[i] + a.pads[i + n] - a.extent(i);
    ORTMODULE_CHECK(span >= 0, kRuntime, "[LpPool] a window of ", a.extent(i), " does not fit an axis of ", size);
    int64_t count = (a.ceil ? span + a.strides[i] - 1 : span) / a.strides[i] + 1;
    // A window must start inside the input or its left pad.
    if (a.ceil && (count - 1) * a.strides[i] >= size + a.pads[i]) --count;
    a.pads[i + n] = std::max(a.pads[i + n], (count - 1) * a.strides[i] + a.extent(i) - size - a.pads[i]);
    sizes.push_back(count);
  }
  const at::Tensor powers =
      at::constant_pad_nd(p == 1 ? at::abs(x) : at::abs(x).pow(static_cast<double>(p)), a.aten_pads()).contiguous();
  c10::DimVector strides{powers.stride(0), powers.stride(1)}, window;
  for (size_t i = 0; i < n; ++i) strides.push_back(powers.stride(static_cast<int64_t>(i) + 2) * a.strides[i]);
  for (size_t i = 0; i < n; ++i) {
    sizes.push_back(a.kernel[i]);
    strides.push_back(powers.stride(static_cast<int64_t>(i) + 2) * a.dilations[i]);
    window.push_back(static_cast<int64_t>(n + 2 + i));
  }
  const at::Tensor sums = powers.as_strided(sizes, strides).sum(window);
  return (p == 1 ? sums : sums.pow(1 / static_cast<double>(p))).to(type);
}

at::Tensor global_lp_pool(const at::Tensor& x, int64_t p) {
  c10::DimVector axes;
  for (int64_t i = 2; i < x.dim(); ++i) axes.push_back(i);
  return at::norm(x, p, axes, true);
}

int64_t checked_p(const Node& node) {
  const int64_t p = node.get_int("p", 2);
  ORTMODULE_CHECK_GRAPH(p >= 1, "[", node.op(), "] p should be at least 1, got ", p, " (", node.describe(), ")");
  return p;
}

TensorFunction lp_pool_of(const Node& node) {
  return [a = PoolAttributes(node), p = checked_p(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {lp_pool(in[0], a, p)};
  };
}

TensorFunction global_lp_pool_of(const Node& node) {
  return [p = checked_p(node)](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {global_lp_pool(in[0], p)};
  };
}

// The sizes of the tensor whose maxima X holds.
c10::DimVector unpooled(c10::IntArrayRef x, const PoolAttributes& a) {
  c10::DimVector out{x[0], x[1]};
  for (size_t i = 0; i < a.rank(); ++i) {
    out.push_back((x[i + 2] - 1) * a.strides[i] - a.pads[i] - a.pads[i + a.rank()] + a.kernel[i]);
    ORTMODULE_CHECK(out.back() > 0, kRuntime, "[MaxUnpool] an output size of ", out.back());
  }
  return out;
}

void check_positions(const at::Tensor& positions, int64_t count) {
  if (positions.numel() == 0 || !positions.device().is_cpu()) return;
  const at::Tensor flat = positions.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i)
    ORTMODULE_CHECK(data[i] >= 0 && data[i] < count, kRuntime, "[MaxUnpool] position ", data[i], " is outside [0, ",
                    count, ")");
}

std::vector<int64_t> pads_to(c10::IntArrayRef from, c10::IntArrayRef to) {
  ORTMODULE_CHECK(from.size() == to.size(), kRuntime, "[MaxUnpool] output_shape should be of ", from.size(),
                  " numbers, got ", to.size());
  std::vector<int64_t> pads;
  for (size_t i = from.size(); i-- > 0;) {
    ORTMODULE_CHECK(to[i] >= from[i], kRuntime, "[MaxUnpool] an output_shape of ", to, " is smaller than ", from);
    pads.push_back(0);
    pads.push_back(to[i] - from[i]);
  }
  return pads;
}

Kernel make_max_unpool(const Node& node) {
  return [a = PoolAttributes(node), shape = HostInts(node, 2)](KernelContext& c) {
    c10::DimVector storage;
    const at::Tensor& x = c.in(0);
    ORTMODULE_CHECK(x.sizes() == c.in(1).sizes() && x.dim() == static_cast<int64_t>(a.rank()) + 2, kRuntime,
                    "[MaxUnpool] X ", x.sizes(), " and I ", c.in(1).sizes(), " do not fit");
    const c10::DimVector sizes = unpooled(x.sizes(), a);
    at::Tensor y = at::zeros(sizes, x.options());
    check_positions(c.in(1), y.numel());
    y.view(-1).scatter_(0, c.in(1).reshape(-1), x.reshape(-1));
    c.out(0, shape.present() ? at::constant_pad_nd(y, pads_to(sizes, shape.read(c, storage))) : y);
  };
}

Kernel make_max_unpool_grad(const Node& node) {
  return [a = PoolAttributes(node)](KernelContext& c) {
    const at::Tensor& positions = c.in(1);
    at::Tensor dy = c.in(0);
    const c10::DimVector sizes = unpooled(positions.sizes(), a);
    for (size_t i = 0; i < sizes.size(); ++i) dy = dy.narrow(static_cast<int64_t>(i), 0, sizes[i]);
    c.out(0, dy.reshape(-1).gather(0, positions.reshape(-1)).view(positions.sizes()));
  };
}

}  // namespace

ORTMODULE_KERNEL("", LpPool, "aten", function_kernel_of<lp_pool_of>);
ORTMODULE_KERNEL("ai.ortmodule", LpPoolGrad, "aten", rerun_kernel_of<lp_pool_of>);
ORTMODULE_KERNEL("", GlobalLpPool, "aten", function_kernel_of<global_lp_pool_of>);
ORTMODULE_KERNEL("ai.ortmodule", GlobalLpPoolGrad, "aten", rerun_kernel_of<global_lp_pool_of>);
ORTMODULE_KERNEL("", MaxUnpool, "aten", make_max_unpool);
ORTMODULE_KERNEL("ai.ortmodule", MaxUnpoolGrad, "aten", make_max_unpool_grad);

}  // namespace ortmodule

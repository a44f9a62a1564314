// ATen kernels of Pad and Trilu. The modes beside constant copy along one axis at a time through an index list.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/limits.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

enum class Mode { kConstant, kEdge, kReflect, kWrap };

Mode mode_of(const Node& node) {
  const std::string text = node.get_string("mode", "constant");
  if (text == "constant") return Mode::kConstant;
  if (text == "edge") return Mode::kEdge;
  if (text == "reflect") return Mode::kReflect;
  if (text == "wrap") return Mode::kWrap;
  fail(ErrorCode::kInvalidGraph, "[Pad] unknown mode '", text, "' (", node.describe(), ")");
}

struct AxisPad {
  int64_t axis, before, after;
};

c10::SmallVector<AxisPad, 4> read_pads(const KernelContext& c, const HostInts& pads, const HostInts& axes,
                                       int64_t rank) {
  c10::DimVector p, a;
  const c10::IntArrayRef numbers = pads.read(c, p), list = axes.read(c, a);
  const size_t count = numbers.size() / 2;
  ORTMODULE_CHECK(numbers.size() == 2 * (axes.present() ? list.size() : static_cast<size_t>(rank)), kRuntime,
                  "[Pad] expected a begin and an end per axis, got ", numbers.size(), " pads for ",
                  axes.present() ? list.size() : static_cast<size_t>(rank), " axes");
  c10::SmallVector<AxisPad, 4> out;
  for (size_t k = 0; k < count; ++k) {
    const int64_t axis = axes.present() ? list.at(k) : static_cast<int64_t>(k);
    out.push_back({positive_axis(axis, rank, "Pad"), numbers[k], numbers[k + count]});
  }
  return out;
}

// torch's order: the last axis first, begin and end together.
c10::DimVector torch_pads(const c10::SmallVector<AxisPad, 4>& pads, int64_t rank, int64_t sign) {
  c10::DimVector out(2 * static_cast<size_t>(rank), 0);
  for (const AxisPad& p : pads) {
    out[2 * static_cast<size_t>(rank - 1 - p.axis)] = sign * p.before;
    out[2 * static_cast<size_t>(rank - 1 - p.axis) + 1] = sign * p.after;
  }
  return out;
}

// Which element of an axis of size n each element of the padded axis copies.
at::Tensor source_positions(int64_t n, const AxisPad& pad, Mode mode, c10::Device device) {
  std::vector<int64_t> from;
  int64_t length = 0;
  const bool fits =
      !__builtin_add_overflow(n, pad.before, &length) && !__builtin_add_overflow(length, pad.after, &length);
  ORTMODULE_CHECK(fits && length < INT64_MAX / 16, kRuntime, "[Pad] an axis of ", n, " with ", pad.before,
                  " before and ", pad.after, " after");
  Allowance::Collected().add(2 * sizeof(int64_t) * static_cast<uint64_t>(std::max<int64_t>(length, 0)));
  const int64_t period = std::max<int64_t>(mode == Mode::kReflect ? 2 * (n - 1) : n, 1);
  for (int64_t i = -pad.before; i < n + pad.after; ++i) {
    int64_t k = mode == Mode::kEdge ? std::clamp<int64_t>(i, 0, n - 1) : ((i % period) + period) % period;
    if (mode == Mode::kReflect && k >= n) k = period - k;
    from.push_back(k);
  }
  return at::tensor(from, at::TensorOptions(at::kLong)).to(device);
}

ORTMODULE_KERNEL("", Pad, "aten", [](const Node& node) -> Kernel {
  const Mode mode = mode_of(node);
  return [pads = HostInts(node, 1), axes = HostInts(node, 3), mode](KernelContext& c) {
    at::Tensor x = c.in(0);
    const auto list = read_pads(c, pads, axes, x.dim());
    if (mode == Mode::kConstant) {
      const at::Scalar value = c.has(2) ? at::Scalar(c.double_value(2)) : at::Scalar(0);
      c.out(0, at::constant_pad_nd(x, torch_pads(list, x.dim(), 1), value));
      return;
    }
    bool copied = false;
    for (const AxisPad& p : list) {
      if (p.before == 0 && p.after == 0) continue;
      ORTMODULE_CHECK(x.size(p.axis) > 0, kRuntime, "[Pad] axis ", p.axis, " is empty: there is nothing to copy");
      ORTMODULE_CHECK(x.size(p.axis) + p.before + p.after >= 0, kRuntime, "[Pad] axis ", p.axis, " of size ",
                      x.size(p.axis), " cannot lose ", -p.before - p.after, " elements");
      x = at::index_select(x, p.axis, source_positions(x.size(p.axis), p, mode, x.device()));
      copied = true;
    }
    c.out(0, copied ? std::move(x) : x.clone());
  };
});

ORTMODULE_KERNEL("ai.ortmodule", PadGrad, "aten", [](const Node& node) -> Kernel {
  const Mode mode = mode_of(node);
  return [sizes = HostInts(node, 1), pads = HostInts(node, 2), axes = HostInts(node, 3), mode](KernelContext& c) {
    at::Tensor dx = c.in(0);
    const auto list = read_pads(c, pads, axes, dx.dim());
    if (mode == Mode::kConstant) {
      c.out(0, at::constant_pad_nd(dx, torch_pads(list, dx.dim(), -1), 0));
      return;
    }
    c10::DimVector storage;
    const c10::IntArrayRef target = sizes.read(c, storage);
    for (size_t k = list.size(); k-- > 0;) {
      const AxisPad& p = list[k];
      const int64_t n = target[static_cast<size_t>(p.axis)];
      c10::DimVector smaller(dx.sizes().begin(), dx.sizes().end());
      smaller[static_cast<size_t>(p.axis)] = n;
      dx = at::zeros(smaller, dx.options()).index_add_(p.axis, source_positions(n, p, mode, dx.device()), dx);
    }
    c.out(0, std::move(dx));
  };
});

ORTMODULE_KERNEL("", Trilu, "aten", [](const Node& node) -> Kernel {
  const bool upper = node.get_int("upper", 1) != 0;
  return [k_input = HostInts(node, 1), upper](KernelContext& c) {
    const int64_t k = k_input.value(c, 0);
    c.out(0, upper ? at::triu(c.in(0), k) : at::tril(c.in(0), k));
  };
});

}  // namespace
}  // namespace ortmodule

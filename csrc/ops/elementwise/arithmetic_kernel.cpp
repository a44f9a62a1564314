// ATen kernels of the binary arithmetic. A result is written over an operand that has its type and sizes and that
// nobody else sees. A 0-d operand on the CPU stays there: ATen's iterator broadcasts it on every device.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <optional>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "kernels/small_tensor.h"
#include "ops/elementwise/short_sum.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// True when the result of an operation on both has the type, the sizes and the device of `into`.
bool holds_result(const at::Tensor& into, const at::Tensor& other) {
  return into.scalar_type() == other.scalar_type() &&
         (into.sizes() == other.sizes() || at::is_expandable_to(other.sizes(), into.sizes())) &&
         (into.device() == other.device() || (other.dim() == 0 && other.device().is_cpu()));
}

// `compute(a, b)` allocates; `into(out, a, b)` writes over `out`, which is a or b.
template <typename Compute, typename Into>
Kernel binary_kernel(Compute compute, Into into) {
  return [compute, into](KernelContext& c) {
    const at::Tensor &a = c.in(0), &b = c.in(1);
    if (c.may_overwrite(0) && holds_result(a, b)) {
      at::Tensor t = a;
      into(t, a, b);
      c.out(0, std::move(t));
    } else if (c.may_overwrite(1) && holds_result(b, a)) {
      at::Tensor t = b;
      into(t, a, b);
      c.out(0, std::move(t));
    } else {
      c.out(0, compute(a, b));
    }
  };
}

ORTMODULE_KERNEL("", Add, "aten", [](const Node&) -> Kernel {
  return binary_kernel(
      [](const at::Tensor& a, const at::Tensor& b) {
        if (!is_short_sum(a, b)) return at::add(a, b);
        at::Tensor out = make_float(a.sizes());
        short_sum(a, b, out);
        return out;
      },
      [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
        is_short_sum(a, b) ? short_sum(a, b, out) : void(at::add_out(out, a, b));
      });
}).inplace();

ORTMODULE_KERNEL("", Sub, "aten", [](const Node&) -> Kernel {
  return binary_kernel([](const at::Tensor& a, const at::Tensor& b) { return at::sub(a, b); },
                       [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::sub_out(out, a, b); });
}).inplace();

ORTMODULE_KERNEL("", Mul, "aten", [](const Node&) -> Kernel {
  return binary_kernel([](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); },
                       [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::mul_out(out, a, b); });
}).inplace();

// ONNX divides integers towards zero. On a CPU the least integer divided by -1 would end the process.
at::Tensor integer_quotient(const at::Tensor& a, const at::Tensor& b) {
  if (b.is_cpu() && (b.scalar_type() == at::kInt || b.scalar_type() == at::kLong)) {
    const at::Tensor negated = at::eq(b, -1);
    if (negated.any().item<bool>())
      return at::where(negated, at::neg(a), at::div(a, b.masked_fill(negated, 1), "trunc"));
  }
  return at::div(a, b, "trunc");
}

ORTMODULE_KERNEL("", Div, "aten", [](const Node& node) -> Kernel {
  if (node.input(0)->type().dtype != DType::kUndefined && !is_floating(node.input(0)->type().dtype))
    return [](KernelContext& c) { c.out(0, integer_quotient(c.in(0), c.in(1))); };
  return binary_kernel([](const at::Tensor& a, const at::Tensor& b) { return at::div(a, b); },
                       [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::div_out(out, a, b); });
}).inplace();

// Quotients and remainders of uint64, which has no wider type to compute them in.
template <uint64_t (*compute)(uint64_t, uint64_t)>
Kernel uint64_kernel(const Node& node) {
  return [what = node.describe()](KernelContext& c) {
    const auto sizes = at::infer_size(c.in(0).sizes(), c.in(1).sizes());
    const at::Tensor a = c.in(0).to(at::kCPU).expand(sizes).contiguous();
    const at::Tensor b = c.in(1).to(at::kCPU).expand(sizes).contiguous();
    at::Tensor out = at::empty(sizes, a.options());
    const auto *x = a.const_data_ptr<uint64_t>(), *y = b.const_data_ptr<uint64_t>();
    auto* z = out.mutable_data_ptr<uint64_t>();
    for (int64_t i = 0; i < out.numel(); ++i) {
      ORTMODULE_CHECK(y[i] != 0, kRuntime, "[", what, "] division of an integer by zero");
      z[i] = compute(x[i], y[i]);
    }
    c.out(0, out.to(c.device()));
  };
}
uint64_t quotient(uint64_t a, uint64_t b) { return a / b; }
uint64_t remainder(uint64_t a, uint64_t b) { return a % b; }

ORTMODULE_KERNEL("", Div, "aten", uint64_kernel<quotient>).types({DType::kUInt64}).rare_types(RareTypes::kAsIs);

// A constant exponent reaches ATen as a number: squares and roots have kernels of their own.
ORTMODULE_KERNEL("", Pow, "aten", [](const Node& node) -> Kernel {
  const TensorData* exponent = node.input(1)->constant();
  if (exponent && exponent->dims.empty()) {
    const at::Scalar power =
        is_integer(exponent->dtype) ? at::Scalar(exponent->to_ints().at(0)) : at::Scalar(exponent->to_doubles().at(0));
    return [power](KernelContext& c) {
      at::Tensor z = at::pow(c.in(0), power);
      c.out(0, z.scalar_type() == c.in(0).scalar_type() ? std::move(z) : z.to(c.in(0).scalar_type()));
    };
  }
  return [](KernelContext& c) {
    at::Tensor z = at::pow(c.in(0), c.in(1));
    c.out(0, z.scalar_type() == c.in(0).scalar_type() ? std::move(z) : z.to(c.in(0).scalar_type()));
  };
});

ORTMODULE_KERNEL("", Mod, "aten", [](const Node& node) -> Kernel {
  if (node.get_int("fmod", 0)) return [](KernelContext& c) { c.out(0, at::fmod(c.in(0), c.in(1))); };
  return [](KernelContext& c) { c.out(0, at::remainder(c.in(0), c.in(1))); };
});

ORTMODULE_KERNEL("", Mod, "aten", uint64_kernel<remainder>).types({DType::kUInt64}).rare_types(RareTypes::kAsIs);

ORTMODULE_KERNEL("ai.ortmodule", FloorDiv, "aten", [](const Node&) -> Kernel {
  return [](KernelContext& c) { c.out(0, at::div(c.in(0), c.in(1), "floor")); };
});

}  // namespace
}  // namespace ortmodule

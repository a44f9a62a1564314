// ATen kernels of the constants and fills. Results lie on the run's device.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "kernels/aten_bridge.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/seeded.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

at::Scalar number(const TensorData& data) {
  if (data.dtype == DType::kBool) return at::Scalar(data.to_ints().at(0) != 0);
  if (is_integer(data.dtype)) return at::Scalar(data.to_ints().at(0));
  return at::Scalar(data.to_doubles().at(0));
}

ORTMODULE_KERNEL("", ConstantOfShape, "aten", [](const Node& node) -> Kernel {
  at::Scalar value = 0.0;
  at::ScalarType type = at::kFloat;
  if (const AttributeValue* given = node.find_attribute("value")) {
    const auto& data = std::get<TensorData>(*given);
    const bool has_number = data.dtype == DType::kBool || is_integer(data.dtype) || dtype_size(data.dtype) > 1;
    if (!has_number || data.dtype == DType::kUInt64) {  // elements that no number of ATen's stands for
      return [sizes = HostInts(node, 0), element = tensor_from(data).reshape({})](KernelContext& c) {
        c10::DimVector storage;
        c.out(0, element.to(c.device()).expand(sizes.read(c, storage)).contiguous());
      };
    }
    value = number(data);
    type = to_scalar_type(data.dtype);
  }
  const double number = value.isBoolean() ? value.toBool() : value.toDouble();
  const bool zero = number == 0 && !std::signbit(number);
  return [sizes = HostInts(node, 0), value, type, zero](KernelContext& c) {
    c10::DimVector storage;
    const auto options = at::TensorOptions(type).device(c.device());
    const c10::IntArrayRef list = sizes.read(c, storage);
    c.out(0, zero ? at::zeros(list, options) : at::full(list, value, options));
  };
});

ORTMODULE_KERNEL("", Range, "aten", [](const Node& node) -> Kernel {
  const at::ScalarType type = to_scalar_type(node.input(0)->type().dtype);
  if (at::isIntegralType(type, false)) {
    return [start = HostInts(node, 0), limit = HostInts(node, 1), delta = HostInts(node, 2), type](KernelContext& c) {
      const int64_t first = start.value(c, 0), last = limit.value(c, 0), step = delta.value(c, 1);
      ORTMODULE_CHECK(step != 0, kRuntime, "[Range] a delta of 0");
      const auto options = at::TensorOptions(type).device(c.device());
      const bool empty = step > 0 ? last <= first : last >= first;
      c.out(0, empty ? at::empty({0}, options) : at::arange(first, last, step, options));
    };
  }
  return [type](KernelContext& c) {
    const double first = c.double_value(0), last = c.double_value(1), step = c.double_value(2);
    ORTMODULE_CHECK(step != 0, kRuntime, "[Range] a delta of 0");
    const auto options = at::TensorOptions(type).device(c.device());
    const bool empty = step > 0 ? last <= first : last >= first;
    c.out(0, empty ? at::empty({0}, options) : at::arange(first, last, step, options));
  };
});

at::Tensor constant_tensor(const Node& node) {
  if (const AttributeValue* value = node.find_attribute("value")) return tensor_from(std::get<TensorData>(*value));
  if (node.find_attribute("value_float")) return at::full({}, node.get_float("value_float", 0), at::kFloat);
  if (const AttributeValue* value = node.find_attribute("value_floats")) {
    const auto* floats = std::get_if<std::vector<double>>(value);
    return floats ? at::tensor(*floats, at::TensorOptions(at::kFloat)) : at::empty({0}, at::kFloat);
  }
  if (node.find_attribute("value_int")) return at::full({}, node.get_int("value_int", 0), at::kLong);
  return at::tensor(node.get_ints("value_ints"), at::TensorOptions(at::kLong));
}

// The kernel keeps one tensor per session; a second owner keeps others from writing over it.
ORTMODULE_KERNEL("", Constant, "aten", [](const Node& node) -> Kernel {
  return [value = constant_tensor(node)](KernelContext& c) { c.out(0, value.to(c.device())); };
});

at::ScalarType like_type(const Node& node) {
  const auto given = static_cast<DType>(node.get_int("dtype", 0));
  return to_scalar_type(given == DType::kUndefined ? node.input(0)->type().dtype : given);
}

ORTMODULE_KERNEL("", RandomUniformLike, "aten", [](const Node& node) -> Kernel {
  const double low = node.get_float("low", 0), high = node.get_float("high", 1);
  return [seeded = Seeded(node), type = like_type(node), low, high](KernelContext& c) {
    c.out(0,
          seeded.like(c.in(0), type, [&](at::Tensor& t, const auto& generator) { t.uniform_(low, high, generator); }));
  };
});

ORTMODULE_KERNEL("", RandomNormalLike, "aten", [](const Node& node) -> Kernel {
  const double mean = node.get_float("mean", 0), scale = node.get_float("scale", 1);
  return [seeded = Seeded(node), type = like_type(node), mean, scale](KernelContext& c) {
    c.out(0,
          seeded.like(c.in(0), type, [&](at::Tensor& t, const auto& generator) { t.normal_(mean, scale, generator); }));
  };
});

ORTMODULE_KERNEL("", EyeLike, "aten", [](const Node& node) -> Kernel {
  const int64_t k = node.get_int("k", 0);
  return [type = like_type(node), k](KernelContext& c) {
    const at::Tensor& x = c.in(0);
    ORTMODULE_CHECK(x.dim() == 2, kRuntime, "[EyeLike] expected a matrix, got ", x.dim(), " dimensions");
    at::Tensor y = at::zeros(x.sizes(), x.options().dtype(type));
    if (k > -x.size(0) && k < x.size(1)) y.diagonal(k).fill_(1);
    c.out(0, std::move(y));
  };
});

}  // namespace
}  // namespace ortmodule

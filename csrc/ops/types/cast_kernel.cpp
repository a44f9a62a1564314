// Kernels of Cast, CastLike and BitCast. Between types that torch has all rules of, the conversion is torch's.
#include <ATen/core/Tensor.h>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/element_types.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

// Whether torch's conversion does all that ONNX asks for.
bool is_plain(DType dtype) {
  switch (dtype) {
    case DType::kFloat:
    case DType::kDouble:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt64:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return true;
    default:
      return false;
  }
}

// Integers lose their high bits, but through a signed type of their width: from there torch knows every way.
at::Tensor as_numbers(const at::Tensor& t, DType from) {
  const at::Tensor numbers = decode_elements(t, from);
  return numbers.scalar_type() == at::kUInt16   ? numbers.to(at::kInt)
         : numbers.scalar_type() == at::kUInt32 ? numbers.to(at::kLong)
                                                : numbers;
}

Kernel make_cast(const Node& node, DType to) {
  ORTMODULE_CHECK(to != DType::kString, kUnsupported, "[", node.op(), "] strings are not supported (", node.describe(),
                  ")");
  const DType from = node.input(0)->type().dtype;
  const at::ScalarType type = to_scalar_type(to);
  if (from == to || (is_plain(from) && is_plain(to))) return [type](KernelContext& c) { c.out(0, c.in(0).to(type)); };
  const CastRules rules{node.get_int("saturate", 1) != 0, node.get_string("round_mode", "up")};
  return [from, to, rules](KernelContext& c) { c.out(0, encode_elements(as_numbers(c.in(0), from), to, rules)); };
}

ORTMODULE_KERNEL("", Cast, "aten",
                 [](const Node& node) -> Kernel { return make_cast(node, static_cast<DType>(node.get_int("to", 0))); });

ORTMODULE_KERNEL("", CastLike, "aten",
                 [](const Node& node) -> Kernel { return make_cast(node, node.input(1)->type().dtype); });

ORTMODULE_KERNEL("", BitCast, "aten", [](const Node& node) -> Kernel {
  const DType from = node.input(0)->type().dtype, to = static_cast<DType>(node.get_int("to", 0));
  if (dtype_bits(from) < 8) return [from, to](KernelContext& c) { c.out(0, from_codes(to_codes(c.in(0), from), to)); };
  return [type = to_scalar_type(to)](KernelContext& c) { c.out(0, c.in(0).view(type)); };
});

}  // namespace
}  // namespace ortmodule

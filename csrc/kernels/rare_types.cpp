// make_kernel(): conversions around the kernels of nodes with uint16, uint32, uint64 or float8 elements.
//
// torch stores and converts these types, but most of its operators do not compute with them. Such a node runs on wider
// numbers instead, and its results are taken back: modulo 2^bits for the integers, as ONNX's arithmetic is. The record
// tells which nodes need nothing (views, operators that only look at shapes), the kernel whether order matters.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_xor.h>

#include <limits>
#include <memory>

#include "kernels/aten_bridge.h"
#include "kernels/element_types.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

bool is_rare(DType dtype) {
  switch (dtype) {
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0:
      return true;
    default:
      return false;
  }
}

constexpr int64_t kSign = std::numeric_limits<int64_t>::min();

at::Tensor widened(const at::Tensor& t, DType dtype, bool ordered) {
  if (!t.defined() || t.scalar_type() != to_scalar_type(dtype)) return t;
  if (dtype == DType::kUInt16) return t.to(at::kInt);
  if (dtype == DType::kUInt32) return t.to(at::kLong);
  if (dtype != DType::kUInt64) return decode_elements(t, dtype);
  const at::Tensor bits = t.view(at::kLong);
  return ordered ? at::bitwise_xor(bits, kSign) : bits;
}

at::Tensor narrowed(const at::Tensor& t, DType dtype, bool ordered) {
  if (!t.defined() || t.scalar_type() == to_scalar_type(dtype)) return t;
  if (dtype != DType::kUInt64) return encode_elements(t, dtype, CastRules{false, "nearest"});
  const at::Tensor bits = t.to(at::kLong);
  return (ordered ? at::bitwise_xor(bits, kSign) : bits).view(at::kUInt64);
}

// The rare type of each value, kUndefined where nothing is to be converted.
std::vector<DType> rare_types(const std::vector<NodeArg*>& values, bool& any) {
  std::vector<DType> out;
  for (const NodeArg* value : values) {
    out.push_back(value && is_rare(value->type().dtype) ? value->type().dtype : DType::kUndefined);
    any = any || out.back() != DType::kUndefined;
  }
  return out;
}

bool needs_nothing(const KernelDef& def, const Node& node) {
  if (def.rare == RareTypes::kAsIs) return true;
  const OpRecord* record = node.record();
  if (!record || record->has(kView) || record->has(kShapeOnly) || record->has(kHostOutput) || record->has(kOpaque) ||
      record->has(kWaitsItself))
    return true;
  for (const auto* values : {&node.inputs(), &node.outputs()})
    for (const NodeArg* value : *values)  // what is no tensor of numbers holds its elements as they are
      if (value && value->type().dtype != DType::kUndefined && dtype_size(value->type().dtype) == 0) return true;
  for (const auto& [name, value] : node.attributes())  // a subgraph's nodes convert for themselves
    if (std::holds_alternative<std::shared_ptr<Graph>>(value)) return true;
  return false;
}

}  // namespace

Kernel make_kernel(const KernelDef& def, const Node& node) {
  bool any = false;
  std::vector<DType> inputs = rare_types(node.inputs(), any), outputs = rare_types(node.outputs(), any);
  if (!any || needs_nothing(def, node)) return def.make(node);
  const bool ordered = def.rare == RareTypes::kOrdered;
  return [kernel = def.make(node), inputs, outputs, ordered](KernelContext& c) {
    std::vector<at::Tensor> frame;
    std::vector<int> input_slots, output_slots;
    for (size_t i = 0; i < c.input_count(); ++i) {
      input_slots.push_back(c.has(i) ? static_cast<int>(frame.size()) : -1);
      if (c.has(i)) frame.push_back(inputs[i] == DType::kUndefined ? c.in(i) : widened(c.in(i), inputs[i], ordered));
    }
    for (size_t i = 0; i < c.output_count(); ++i) {
      output_slots.push_back(c.wants(i) ? static_cast<int>(frame.size()) : -1);
      if (c.wants(i)) frame.emplace_back();
    }
    // Value-initialized: nothing may be written over.
    const std::unique_ptr<bool[]> last_use = std::make_unique<bool[]>(input_slots.size() + 1);
    KernelContext inner(frame.data(), &c.symbols(), c.streams());
    inner.set_step(
        {input_slots.data(), input_slots.size(), output_slots.data(), output_slots.size(), last_use.get(), c.device()});
    kernel(inner);
    for (size_t i = 0; i < c.output_count(); ++i) {
      if (!c.wants(i)) continue;
      const at::Tensor& result = frame[output_slots[i]];
      c.out(i, outputs[i] == DType::kUndefined ? result : narrowed(result, outputs[i], ordered));
    }
  };
}

}  // namespace ortmodule

#include "operators.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "counts.h"
#include "host_view.h"
#include "memory.h"
#include "shapes.h"

namespace guarded {
namespace {

using torch::jit::Stack;

bool written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

bool selects_by_mask(const c10::OperatorHandle& op, const Stack& stack) {
  if (op.schema().name() != "aten::index") return true;  // others with the tag always depend on values
  const auto indices = tensors_of(stack[1]);
  return std::any_of(indices.begin(), indices.end(),
                     [](const at::Tensor& t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; });
}

bool may_queue(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& schema = op.schema();
  // A kernel that is written in Python needs what a thread may hold that waits for it; those are not ATen's.
  if (schema.name().compare(0, 6, "aten::") != 0) return false;
  // Which of its results are empty depends on the device, and its gradient looks.
  if (schema.name().compare(0, 20, "aten::_embedding_bag") == 0) return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  if (op.hasTag(at::Tag::nondeterministic_seeded) || op.hasTag(at::Tag::data_dependent_output)) return false;
  if (op.hasTag(at::Tag::dynamic_output_shape) && selects_by_mask(op, stack)) return false;
  for (const c10::IValue& value : stack)
    if (value.isGenerator() || value.isDevice()) return false;
  for (const c10::Argument& result : schema.returns()) {
    const auto& type = *result.type();
    const bool list = type.isSubtypeOf(*c10::ListType::ofTensors());
    if (!list && !type.isSubtypeOf(*c10::TensorType::get())) return false;
    if (result.alias_info() && (list || !result.alias_info()->isWrite())) return false;
  }
  return true;
}

// Operands that are written get the shape that the operator gives them.
void resize_written(const c10::OperatorHandle& op, const Stack& stack, const Shapes& shapes) {
  for (size_t k = 0; k < stack.size(); ++k) {
    if (!written(op.schema().arguments()[k])) continue;
    const auto tensors = tensors_of(stack[k]), wanted = tensors_of(shapes.operands[k]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].sizes() == wanted[i].sizes()) continue;
      tensors[i].resize_(wanted[i].sizes());
      tensors[i].unsafeGetTensorImpl()->set_sizes_and_strides(wanted[i].sizes(), wanted[i].strides());
    }
  }
}

// The results on the device: the operands that are written, and new memory.
Stack results_of(const c10::OperatorHandle& op, const Stack& stack, const Shapes& shapes, c10::Device device) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  Stack out;
  for (size_t r = 0; r < returns.size(); ++r) {
    if (const c10::AliasInfo* alias = returns[r].alias_info()) {
      const auto argument = std::find_if(arguments.begin(), arguments.end(), [&](const c10::Argument& a) {
        return a.alias_info() && *a.alias_info() == *alias;
      });
      out.push_back(stack.at(argument - arguments.begin()));
    } else {
      out.push_back(map_tensors(shapes.results[r], [&](const at::Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), at::TensorOptions(t.scalar_type()).device(device));
      }));
    }
  }
  return out;
}

void write_results(const c10::OperatorHandle& op, const Stack& computed, const Stack& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    if (op.schema().returns()[r].alias_info()) continue;  // computed in place
    const auto from = tensors_of(computed[r]), to = tensors_of(results[r]);
    for (size_t i = 0; i < to.size(); ++i) {
      TORCH_CHECK(i < from.size() && from[i].sizes() == to[i].sizes() && from[i].scalar_type() == to[i].scalar_type(),
                  op.schema().name(), " gives another result ", r,
                  " on the CPU than its meta kernel says: ", i < from.size() ? from[i].sizes() : at::IntArrayRef(),
                  " for ", to[i].sizes());
      to[i].copy_(from[i]);
    }
  }
}

void compute_by_itself(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex device) {
  const OwnWork own;
  const c10::OptionalDeviceGuard on(device < 0 ? std::nullopt : std::optional(c10::Device(kDevice, device)));
  synchronize(current_queue(current_device()));
  // The first tensor's device is the result's in what follows.
  const auto first = stack->end() - op.schema().arguments().size();
  if (device >= 0)
    for (auto value = first; value != stack->end(); ++value)
      if (value->isTensor() && value->toTensor().defined()) *value = value->toTensor().to(c10::Device(kDevice, device));
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
}

// What a GPU's host has to wait for: a number, or a shape that depends on values.
bool asks_for_values(const c10::OperatorHandle& op, const Stack& operands) {
  return op.hasTag(at::Tag::data_dependent_output) ||
         (op.hasTag(at::Tag::dynamic_output_shape) && selects_by_mask(op, operands));
}

void compute_now(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex device) {
  const size_t before = stack->size() - op.schema().arguments().size();
  const Stack operands(stack->begin() + static_cast<std::ptrdiff_t>(before), stack->end());
  if (asks_for_values(op, operands)) count_wait();
  compute_by_itself(op, stack, device);
  if (device >= 0)
    count_operator(op, operands, Stack(stack->begin() + static_cast<std::ptrdiff_t>(before), stack->end()));
}

// What is written may be an operand too, but not a part of one: a GPU's threads would race.
void check_overlap(const c10::OperatorHandle& op, const Stack& operands) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : operands)
    for (at::Tensor& t : tensors_of(value)) all.push_back(std::move(t));
  for (size_t k = 0; k < operands.size(); ++k)
    if (written(op.schema().arguments()[k]))
      for (const at::Tensor& to : tensors_of(operands[k]))
        for (const at::Tensor& t : all)
          if (!to.is_same(t)) at::assert_no_partial_overlap(to, t);
}

}  // namespace

c10::DeviceIndex check_devices(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const bool indexes = op.schema().name().find("index") != std::string::npos;
  c10::DeviceIndex device = -1;
  for (size_t k = 0; k < arguments.size(); ++k) {
    for (const at::Tensor& t : tensors_of(stack[stack.size() - arguments.size() + k])) {
      TORCH_CHECK(!t.is_cpu() || (!written(arguments[k]) && (indexes || t.dim() == 0)),
                  "Expected all tensors to be on the same device, but ", op.schema().name(), " got one on the host of ",
                  "shape ", t.sizes(), " as '", arguments[k].name(), "'");
      if (t.device().type() != kDevice) continue;
      TORCH_CHECK(device < 0 || device == t.device().index(), "Expected all tensors to be on the same device, but ",
                  op.schema().name(), " got tensors of ", c10::Device(kDevice, device), " and ", t.device());
      device = t.device().index();
    }
  }
  return device;
}

bool queue_operator(const c10::OperatorHandle& op, Stack& stack, c10::DeviceIndex device) {
  const size_t first = stack.size() - op.schema().arguments().size();
  const Stack operands(stack.begin() + first, stack.end());
  if (device < 0 || !may_queue(op, operands)) return false;
  check_overlap(op, operands);
  const std::shared_ptr<const Shapes> shapes = shapes_of(op, operands);
  if (!shapes) return false;
  const c10::DeviceGuard on(c10::Device(kDevice, device));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  resize_written(op, operands, *shapes);
  const Stack results = results_of(op, operands, *shapes, on.current_device());
  // The host may change its tensors once this returns: their values go along, as a launch takes them.
  Stack views = map_stack(operands, [](const at::Tensor& t) {
    if (!t.is_cpu()) return loose_view(t);
    at::Tensor copy = t.clone();
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  });
  current_queue(device).push([op, views = std::move(views), written = map_stack(results, loose_view)]() mutable {
    op.callBoxed(views);
    write_results(op, views, written);
  });
  count_operator(op, operands, results);
  stack.resize(first);
  stack.insert(stack.end(), results.begin(), results.end());
  return true;
}

void compute(const c10::OperatorHandle& op, Stack* stack) {
  const c10::DeviceIndex device = check_devices(op, *stack);
  if (device >= 0) throw_kept(device);
  if (!queue_operator(op, *stack, device)) compute_now(op, stack, device);
}

}  // namespace guarded

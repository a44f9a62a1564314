// Calls `compute` of custom operators: tensors go over as plain pointers, results are made by ATen's allocator.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "ops/custom/custom_ops.h"

namespace ortmodule {
namespace {

// What one call hands out and what it made.
struct Call : OrtmoduleContext {
  std::vector<at::Tensor> kept;  // contiguous copies of inputs
  std::vector<bool> made;        // outputs
};

void describe(const at::Tensor& t, OrtmoduleContext& c, OrtmoduleTensor* out) {
  const std::vector<int64_t>& sizes = c.sizes.emplace_back(t.sizes().vec());
  out->data = t.numel() > 0 ? t.data_ptr() : nullptr;
  out->sizes = sizes.data();
  out->rank = static_cast<int32_t>(t.dim());
  out->dtype = static_cast<int32_t>(to_dtype(t.scalar_type()));
  out->device_type = t.device().is_cpu() ? ORTMODULE_DEVICE_CPU : ORTMODULE_DEVICE_CUDA;
  out->device_index = t.device().is_cpu() ? 0 : t.device().index();
}

int input(const OrtmoduleContext* context, size_t i, OrtmoduleTensor* out) {
  *out = {};
  if (!context->kernel->has(i)) return 0;
  auto* call = const_cast<Call*>(static_cast<const Call*>(context));
  call->kept.push_back(context->kernel->in(i).contiguous());
  describe(call->kept.back(), *call, out);
  return 1;
}

int output(OrtmoduleContext* context, size_t i, int32_t rank, const int64_t* sizes, OrtmoduleTensor* out) {
  *out = {};
  if (!context->kernel->wants(i)) return 0;
  const DType dtype = (*context->output_types)[i];
  try {
    const at::IntArrayRef shape(sizes, static_cast<size_t>(rank < 0 ? 0 : rank));
    at::Tensor made = at::empty(shape, at::TensorOptions(to_scalar_type(dtype)).device(context->kernel->device()));
    describe(made, *context, out);
    context->kernel->out(i, std::move(made));
    static_cast<Call*>(context)->made[i] = true;
  } catch (const std::exception& error) {  // must not pass through the library
    if (context->error.empty()) context->error = str("output ", i, " cannot be made: ", error.what());
    return 0;
  }
  return 1;
}

void* stream(const OrtmoduleContext* context) {
  const c10::Device device = context->kernel->device();
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace

Kernel make_custom_kernel(const Node& node) {
  struct State {
    const OrtmoduleCustomOp* op;
    Attributes attributes;
    std::vector<DType> output_types;
    OrtmoduleApi api;
    std::string where;
  };
  auto state = std::make_shared<State>();
  state->op = custom_op_of(*node.record());
  state->attributes = node.attributes();
  for (const NodeArg* out : node.outputs()) state->output_types.push_back(out ? out->type().dtype : DType::kUndefined);
  state->api = common_custom_api();
  state->api.input = input;
  state->api.output = output;
  state->api.stream = stream;
  state->where = node.describe();
  return [state](KernelContext& c) {
    Call call;
    call.attributes = &state->attributes;
    call.inputs = c.input_count();
    call.outputs = c.output_count();
    call.kernel = &c;
    call.output_types = &state->output_types;
    call.made.assign(call.outputs, false);
    call_custom(state->op->compute, call, state->api, state->op->user_data, ErrorCode::kRuntime, state->where);
    for (size_t i = 0; i < call.outputs; ++i)
      ORTMODULE_CHECK(call.made[i] || !c.wants(i), kRuntime, "the library made no output ", i, " (", state->where, ")");
  };
}

}  // namespace ortmodule

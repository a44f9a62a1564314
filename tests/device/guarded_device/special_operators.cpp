#include "special_operators.h"

#include <ATen/ops/histc.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_batch_norm.h>

#include <vector>

#include "counts.h"
#include "host_view.h"
#include "operators.h"

namespace guarded {
namespace {

using torch::jit::Stack;

c10::OperatorHandle named(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

// The schema does not say that it writes the running statistics, so that a copy of them would be written.
void batch_norm_now(Stack& stack) {
  const OwnWork own;
  const size_t first = stack.size() - 8;
  const auto host = [&](size_t k) {
    const c10::IValue& value = stack[first + k];
    return value.isTensor() && value.toTensor().defined() ? value.toTensor().cpu() : at::Tensor();
  };
  const c10::Device device = stack[first].toTensor().device();
  const at::Tensor mean = host(3), variance = host(4);
  const bool training = stack[first + 5].toBool();
  auto [y, kept_mean, kept_scale] = at::native_batch_norm(host(0), host(1), host(2), mean, variance, training,
                                                          stack[first + 6].toDouble(), stack[first + 7].toDouble());
  if (mean.defined() && training) stack[first + 3].toTensor().copy_(mean);
  if (variance.defined() && training) stack[first + 4].toTensor().copy_(variance);
  stack.resize(first);
  for (const at::Tensor& t : {y, kept_mean, kept_scale}) stack.emplace_back(t.to(device));
}

}  // namespace

void batch_norm(const c10::OperatorHandle& op, Stack* stack) {
  const c10::DeviceIndex device = check_devices(op, *stack);
  const bool training = stack->at(stack->size() - 3).toBool();  // otherwise results' sizes depend on the device
  const Stack operands(stack->end() - 8, stack->end());
  if (training && queue_operator(op, *stack, device)) return;
  batch_norm_now(*stack);
  count_operator(op, operands, Stack(stack->end() - 3, stack->end()));
}

at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType to) {
  static const c10::OperatorHandle plain = named("aten::mm");
  at::Tensor y;
  {
    const OwnWork own;
    y = at::mm(a.to(to), b.to(to));
  }
  count_operator(plain, {a, b}, {y});
  return y;
}

at::Tensor histogram(const at::Tensor& x, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  const OwnWork own;
  return at::histc(x.cpu().to(at::kFloat), bins, least, most).to(x.device(), x.scalar_type());  // of integers too
}

}  // namespace guarded

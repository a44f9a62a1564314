// Kernels of Softmax, LogSoftmax and their gradients.
//
// ATen's CPU kernels read an element before they write the same element, so the result may go over the input (forward)
// or over dy (backward) when that memory is free: attention's score matrix then exists once, not twice. Other devices'
// kernels promise nothing of the kind and get fresh memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>

#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

bool may_reuse(const KernelContext& c) { return c.may_overwrite(0) && c.in(0).is_cpu() && c.in(0).is_contiguous(); }

using Forward = at::Tensor (*)(const at::Tensor&, int64_t, bool);
using ForwardOut = at::Tensor& (*)(at::Tensor&, const at::Tensor&, int64_t, bool);
using Backward = at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType);
using BackwardOut = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, at::ScalarType);

template <Forward forward, ForwardOut forward_out>
Kernel make_forward(const Node& node) {
  return [axis = node.get_int("axis", -1)](KernelContext& c) {
    if (!may_reuse(c)) return c.out(0, forward(c.in(0), axis, false));
    at::Tensor y = c.in(0);
    forward_out(y, y, axis, false);
    c.out(0, std::move(y));
  };
}

template <Backward backward, BackwardOut backward_out>
Kernel make_backward(const Node& node) {
  return [axis = node.get_int("axis", -1)](KernelContext& c) {
    const at::Tensor& y = c.in(1);
    if (!may_reuse(c)) return c.out(0, backward(c.in(0), y, axis, y.scalar_type()));
    at::Tensor dx = c.in(0);
    backward_out(dx, dx, y, axis, y.scalar_type());
    c.out(0, std::move(dx));
  };
}

// ATen names both _log_softmax and its out form with overloads that a template argument cannot pick from.
at::Tensor softmax(const at::Tensor& x, int64_t axis, bool f) { return at::_softmax(x, axis, f); }
at::Tensor& softmax_out(at::Tensor& y, const at::Tensor& x, int64_t axis, bool f) {
  return at::_softmax_out(y, x, axis, f);
}
at::Tensor log_softmax(const at::Tensor& x, int64_t axis, bool f) { return at::_log_softmax(x, axis, f); }
at::Tensor& log_softmax_out(at::Tensor& y, const at::Tensor& x, int64_t axis, bool f) {
  return at::_log_softmax_out(y, x, axis, f);
}
at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& y, int64_t axis, at::ScalarType t) {
  return at::_softmax_backward_data(dy, y, axis, t);
}
at::Tensor& softmax_backward_out(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& y, int64_t axis,
                                 at::ScalarType t) {
  return at::_softmax_backward_data_out(dx, dy, y, axis, t);
}
at::Tensor log_softmax_backward(const at::Tensor& dy, const at::Tensor& y, int64_t axis, at::ScalarType t) {
  return at::_log_softmax_backward_data(dy, y, axis, t);
}
at::Tensor& log_softmax_backward_out(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& y, int64_t axis,
                                     at::ScalarType t) {
  return at::_log_softmax_backward_data_out(dx, dy, y, axis, t);
}

}  // namespace

ORTMODULE_KERNEL("", Softmax, "aten", make_forward<softmax, softmax_out>).inplace();
ORTMODULE_KERNEL("", LogSoftmax, "aten", make_forward<log_softmax, log_softmax_out>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", SoftmaxGrad, "aten", make_backward<softmax_backward, softmax_backward_out>).inplace();
ORTMODULE_KERNEL("ai.ortmodule", LogSoftmaxGrad, "aten", make_backward<log_softmax_backward, log_softmax_backward_out>)
    .inplace();

}  // namespace ortmodule

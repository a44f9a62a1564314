// Operators of the guarded device that the CPU has in another form.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <tuple>

namespace guarded {

// Boxed.
void batch_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// A product whose sums are of another type than its factors.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType to);

at::Tensor histogram(const at::Tensor& x, int64_t bins, const at::Scalar& least, const at::Scalar& most);

// The cells of LSTM and GRU, which torch asks of every accelerator (cells.cpp).
using Optional = const std::optional<at::Tensor>&;
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& cx,
                                                         Optional bias_x, Optional bias_h);
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(Optional dhy, Optional dcy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& kept,
                                                                  bool has_bias);
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& hx,
                                            Optional bias_x, Optional bias_h);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& d,
                                                                                         const at::Tensor& kept,
                                                                                         bool has_bias);

}  // namespace guarded

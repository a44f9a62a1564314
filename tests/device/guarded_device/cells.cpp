// The cells of LSTM and GRU, of operators that the device has.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include "special_operators.h"

namespace guarded {

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& cx,
                                                         Optional bias_x, Optional bias_h) {
  at::Tensor sum = x + h;
  if (bias_x && bias_x->defined()) sum = sum + *bias_x + *bias_h;
  const auto parts = sum.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const at::Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(Optional dhy, Optional dcy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& kept,
                                                                  bool has_bias) {
  const auto gates = kept.chunk(4, 1);
  const at::Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3], t = cy.tanh();
  const at::Tensor dh = dhy && dhy->defined() ? *dhy : at::zeros_like(cy);
  at::Tensor dc = dh * o * (1 - t * t);
  if (dcy && dcy->defined()) dc = dc + *dcy;
  const at::Tensor d =
      at::cat({dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)}, 1);
  return {d, dc * f, has_bias ? d.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& x, const at::Tensor& h, const at::Tensor& hx,
                                            Optional bias_x, Optional bias_h) {
  const bool biased = bias_x && bias_x->defined();
  const auto of_x = (biased ? x + *bias_x : x).chunk(3, 1), of_h = (biased ? h + *bias_h : h).chunk(3, 1);
  const at::Tensor r = (of_x[0] + of_h[0]).sigmoid(), z = (of_x[1] + of_h[1]).sigmoid();
  const at::Tensor n = (of_x[2] + r * of_h[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, of_h[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& d,
                                                                                         const at::Tensor& kept,
                                                                                         bool has_bias) {
  const auto parts = kept.chunk(5, 1);
  const at::Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &h = parts[4];
  const at::Tensor dn = d * (1 - z) * (1 - n * n), dz = d * (hx - n) * z * (1 - z), dr = dn * h * r * (1 - r);
  const at::Tensor dx = at::cat({dr, dz, dn}, 1), dh = at::cat({dr, dz, dn * r}, 1);
  return {dx, dh, d * z, has_bias ? dx.sum(0) : at::Tensor(), has_bias ? dh.sum(0) : at::Tensor()};
}

}  // namespace guarded

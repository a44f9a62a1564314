// Kernels of RNN, GRU and LSTM: the cells' formulas, unrolled over time in ATen.
//
// Input projections of all steps are one matrix product; a step multiplies the state by R once.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>

#include "kernels/rerun_kernel.h"
#include "ops/recurrent/cell.h"

namespace ortmodule {
namespace {

at::Tensor gate(const at::Tensor& gates, int64_t i, int64_t hidden) { return gates.narrow(-1, i * hidden, hidden); }

// H = f(x W^T + h R^T + b)
TensorFunction rnn(const Node& node) {
  RecurrentLayer layer(node, 1, 1, {"Tanh"});
  return [layer](const std::vector<at::Tensor>& inputs) {
    return layer.run(inputs, [](const DirectionWeights& w, const at::Tensor& gates, const States& state) -> States {
      return {w.functions[0](at::add(gates, at::linear(state[0], w.r, w.bias)))};
    });
  };
}

// Gates z, r, h. linear_before_reset: the reset gate multiplies the product with R, not the state before it.
TensorFunction gru(const Node& node) {
  RecurrentLayer layer(node, 3, 1, {"Sigmoid", "Tanh"});
  const bool linear_first = node.get_int("linear_before_reset", 0) != 0;
  return [layer, linear_first](const std::vector<at::Tensor>& inputs) {
    return layer.run(inputs, [=](const DirectionWeights& w, const at::Tensor& gates, const States& state) -> States {
      const at::Tensor& h = state[0];
      const int64_t n = h.size(-1), rows = linear_first ? 3 * n : 2 * n;
      const auto bias = [&](int64_t from, int64_t size) {
        return w.bias.defined() ? w.bias.narrow(0, from, size) : at::Tensor();
      };
      const at::Tensor recurrent = at::linear(h, w.r.narrow(0, 0, rows), bias(0, rows));
      const at::Tensor update = w.functions[0](at::add(gate(gates, 0, n), gate(recurrent, 0, n)));
      const at::Tensor reset = w.functions[0](at::add(gate(gates, 1, n), gate(recurrent, 1, n)));
      const at::Tensor hidden = linear_first ? at::mul(reset, gate(recurrent, 2, n))
                                             : at::linear(at::mul(reset, h), w.r.narrow(0, rows, n), bias(rows, n));
      const at::Tensor candidate = w.functions[1](at::add(gate(gates, 2, n), hidden));
      return {at::add(candidate, at::mul(update, h.sub(candidate)))};
    });
  };
}

// Gates i, o, f, c; peepholes i, o, f. input_forget: f = 1 - i.
TensorFunction lstm(const Node& node) {
  RecurrentLayer layer(node, 4, 2, {"Sigmoid", "Tanh", "Tanh"});
  const bool coupled = node.get_int("input_forget", 0) != 0;
  return [layer, coupled](const std::vector<at::Tensor>& inputs) {
    return layer.run(inputs, [=](const DirectionWeights& w, const at::Tensor& gates, const States& state) -> States {
      const at::Tensor &h = state[0], &c = state[1];
      const int64_t n = h.size(-1);
      const at::Tensor all = at::add(gates, at::linear(h, w.r, w.bias));
      const auto sum = [&](int64_t i, const at::Tensor& cell) {
        const at::Tensor part = gate(all, i, n);
        return w.peephole.defined() ? at::add(part, at::mul(gate(w.peephole, i, n), cell)) : part;
      };
      const at::Tensor in = w.functions[0](sum(0, c));
      const at::Tensor forget = coupled ? in.neg().add(1) : w.functions[0](sum(2, c));
      const at::Tensor candidate = w.functions[1](gate(all, 3, n));
      const at::Tensor cell = at::add(at::mul(forget, c), at::mul(in, candidate));
      const at::Tensor out = w.functions[0](sum(1, cell));
      return {at::mul(out, w.functions[2](cell)), cell};
    });
  };
}

}  // namespace

ORTMODULE_KERNEL("", RNN, "aten", function_kernel_of<rnn>);
ORTMODULE_KERNEL("ai.ortmodule", RNNGrad, "aten", rerun_kernel_of<rnn>);
ORTMODULE_KERNEL("", GRU, "aten", function_kernel_of<gru>);
ORTMODULE_KERNEL("ai.ortmodule", GRUGrad, "aten", rerun_kernel_of<gru>);
ORTMODULE_KERNEL("", LSTM, "aten", function_kernel_of<lstm>);
ORTMODULE_KERNEL("ai.ortmodule", LSTMGrad, "aten", rerun_kernel_of<lstm>);

}  // namespace ortmodule

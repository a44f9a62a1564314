// One direction of one layer of an LSTM, a GRU or an Elman network, in torch's layout of weights and gates.
//
// The LSTM's gates are i, f, g, o; the GRU's r, z, n, with the reset gate behind the product with w_hh.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace ortmodule {

enum class CellKind { kLstm, kGru, kTanh, kRelu };

struct LayerForm {
  CellKind cell = CellKind::kLstm;
  bool reverse = false, batch_first = false;

  explicit LayerForm(const Node& node);  // from the attributes of a RecurrentLayer
  LayerForm(CellKind cell, bool reverse, bool batch_first) : cell(cell), reverse(reverse), batch_first(batch_first) {}
  int64_t gates() const { return cell == CellKind::kLstm ? 4 : cell == CellKind::kGru ? 3 : 1; }
};

// x[steps, batch, features] (batch first where the form says so), w_ih[gates*hidden, features],
// w_hh[gates*hidden, outputs], b_ih and b_hh[gates*hidden], h0[batch, outputs], c0[batch, hidden] and, for an LSTM
// whose outputs are projected, w_hr[outputs, hidden]. Without w_hr, outputs is hidden. All but the first three may be
// undefined.
struct LayerInputs {
  at::Tensor x, w_ih, w_hh, b_ih, b_hh, h0, c0, w_hr;
};
constexpr size_t kLayerInputs = 8;

// y[steps, batch, outputs], the last states, and what backward needs: the gates' values [steps, batch, 4*hidden] of an
// LSTM, of a GRU r, z, n and the product behind r; the LSTM's cells [steps, batch, hidden].
struct LayerOutputs {
  at::Tensor y, h_n, c_n, gates, cells;
};

struct LayerGradients {
  at::Tensor dy, dh_n, dc_n;  // undefined where nothing flows in
};

// Throws kRuntime where sizes do not belong together; `name` says whose they are.
void check_layer(const LayerForm& form, const LayerInputs& in, const std::string& name);
void check_kept(const LayerForm& form, const LayerInputs& in, const LayerOutputs& saved, const LayerGradients& grads,
                const std::string& name);

// On the CPU, for float, double, bfloat16 and half.
LayerOutputs layer_forward(const LayerForm& form, const LayerInputs& in);
// The gradients of the inputs, in their order, of those that are wanted.
std::array<at::Tensor, kLayerInputs> layer_backward(const LayerForm& form, const LayerInputs& in,
                                                    const LayerOutputs& saved, const LayerGradients& grads,
                                                    const std::array<bool, kLayerInputs>& wanted);

}  // namespace ortmodule

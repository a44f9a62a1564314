// Kernels of RecurrentLayer and its gradient.
//
// "cpu": layer_cpu_kernel.cpp. "aten", for other devices: the formulas step by step, differentiated by autograd; on a
// GPU capture leaves such layers to ATen, whose kernels there take all steps and layers at once.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "base/status.h"
#include "kernels/rerun_kernel.h"
#include "ops/recurrent/layer.h"

namespace ortmodule {

LayerForm::LayerForm(const Node& node)
    : reverse(node.get_int("reverse", 0) != 0), batch_first(node.get_int("batch_first", 0) != 0) {
  const std::string mode = node.get_string("mode", "lstm");
  cell = mode == "lstm"   ? CellKind::kLstm
         : mode == "gru"  ? CellKind::kGru
         : mode == "relu" ? CellKind::kRelu
                          : CellKind::kTanh;
}

void check_layer(const LayerForm& form, const LayerInputs& in, const std::string& name) {
  const auto expect = [&](const at::Tensor& t, const char* what, std::initializer_list<int64_t> sizes) {
    ORTMODULE_CHECK(!t.defined() || t.sizes() == at::IntArrayRef(sizes), kRuntime, "[RecurrentLayer] expected ", what,
                    " of shape ", at::IntArrayRef(sizes), ", got ", t.sizes(), " (", name, ")");
    ORTMODULE_CHECK(!t.defined() || t.scalar_type() == in.x.scalar_type(), kRuntime, "[RecurrentLayer] ", what,
                    " has another type than x (", name, ")");
  };
  ORTMODULE_CHECK(in.x.dim() == 3 && in.w_hh.dim() == 2 && (!in.w_hr.defined() || in.w_hr.dim() == 2), kRuntime,
                  "[RecurrentLayer] expected x of 3 dimensions and matrices of weights, got ", in.x.sizes(), " and ",
                  in.w_hh.sizes(), " (", name, ")");
  const int64_t batch = in.x.size(form.batch_first ? 0 : 1), outputs = in.w_hh.size(1);
  const int64_t hidden = in.w_hr.defined() ? in.w_hr.size(1) : outputs, rows = form.gates() * hidden;
  expect(in.w_ih, "w_ih", {rows, in.x.size(2)});
  expect(in.w_hh, "w_hh", {rows, outputs});
  expect(in.b_ih, "b_ih", {rows});
  expect(in.b_hh, "b_hh", {rows});
  expect(in.h0, "h0", {batch, outputs});
  expect(in.c0, "c0", {batch, hidden});
  expect(in.w_hr, "w_hr", {outputs, hidden});
}

void check_kept(const LayerForm& form, const LayerInputs& in, const LayerOutputs& saved, const LayerGradients& grads,
                const std::string& name) {
  const bool lstm = form.cell == CellKind::kLstm, gru = form.cell == CellKind::kGru;
  const int64_t batch = in.x.size(form.batch_first ? 0 : 1), hidden = in.w_hh.size(0) / form.gates(),
                outputs = in.w_hh.size(1);
  const auto expect = [&](const at::Tensor& t, const char* what, at::IntArrayRef sizes, bool needed) {
    ORTMODULE_CHECK(t.defined() || !needed, kRuntime, "[RecurrentLayerGrad] ", what, " is absent (", name, ")");
    ORTMODULE_CHECK(!t.defined() || t.sizes() == sizes, kRuntime, "[RecurrentLayerGrad] expected ", what, " of shape ",
                    sizes, ", got ", t.sizes(), " (", name, ")");
    ORTMODULE_CHECK(!t.defined() || t.scalar_type() == in.x.scalar_type(), kRuntime, "[RecurrentLayerGrad] ", what,
                    " has another type than x (", name, ")");
  };
  const auto sequence = [&](int64_t width) { return c10::SmallVector<int64_t, 3>{in.x.size(0), in.x.size(1), width}; };
  expect(saved.y, "y", sequence(outputs), true);
  expect(saved.gates, "gates", sequence(4 * hidden), lstm || gru);
  expect(saved.cells, "cells", sequence(hidden), lstm);
  expect(grads.dy, "dy", sequence(outputs), false);
  expect(grads.dh_n, "dh_n", {batch, outputs}, false);
  expect(grads.dc_n, "dc_n", {batch, hidden}, false);
}

namespace {

LayerInputs inputs_of(const KernelContext& c, size_t first) {
  const auto at = [&](size_t i) { return c.in_or_undefined(first + i); };
  return {c.in(first), c.in(first + 1), c.in(first + 2), at(3), at(4), at(5), at(6), at(7)};
}

// y, h_n, c_n, gates, cells
TensorFunction composed(const Node& node) {
  return [form = LayerForm(node), name = node.describe()](const std::vector<at::Tensor>& given) {
    const auto input = [&](size_t i) { return i < given.size() ? given[i] : at::Tensor(); };
    const LayerInputs in{given[0], given[1], given[2], input(3), input(4), input(5), input(6), input(7)};
    check_layer(form, in, name);
    const at::Tensor x = form.batch_first ? in.x.transpose(0, 1) : in.x;
    const int64_t steps = x.size(0), n = in.w_hh.size(0) / form.gates(), outputs = in.w_hh.size(1);
    const bool lstm = form.cell == CellKind::kLstm, gru = form.cell == CellKind::kGru;
    const at::Tensor projected = at::linear(x, in.w_ih, in.b_ih);
    at::Tensor h = in.h0.defined() ? in.h0 : at::zeros({x.size(1), outputs}, x.options());
    at::Tensor c = in.c0.defined() || !lstm ? in.c0 : at::zeros({x.size(1), n}, x.options());
    const auto empty = [&](int64_t width) { return at::zeros({0, x.size(1), width}, x.options()); };
    std::vector<at::Tensor> ys(steps), gates(steps), cells(steps);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t t = form.reverse ? steps - 1 - s : s;
      const at::Tensor recurrent = at::linear(h, in.w_hh, in.b_hh);
      if (lstm) {
        const auto parts = at::add(projected[t], recurrent).chunk(4, -1);
        const at::Tensor i = at::sigmoid(parts[0]), f = at::sigmoid(parts[1]), g = at::tanh(parts[2]),
                         o = at::sigmoid(parts[3]);
        c = at::add(at::mul(f, c), at::mul(i, g));
        h = at::mul(o, at::tanh(c));
        gates[t] = at::cat({i, f, g, o}, -1);
        cells[t] = c;
        if (in.w_hr.defined()) h = at::linear(h, in.w_hr);
      } else if (gru) {
        const auto from_x = projected[t].chunk(3, -1), from_h = recurrent.chunk(3, -1);
        const at::Tensor r = at::sigmoid(at::add(from_x[0], from_h[0])), z = at::sigmoid(at::add(from_x[1], from_h[1]));
        const at::Tensor candidate = at::tanh(at::add(from_x[2], at::mul(r, from_h[2])));
        h = at::add(candidate, at::mul(z, at::sub(h, candidate)));
        gates[t] = at::cat({r, z, candidate, from_h[2]}, -1);
      } else {
        const at::Tensor sum = at::add(projected[t], recurrent);
        h = form.cell == CellKind::kRelu ? at::relu(sum) : at::tanh(sum);
      }
      ys[t] = h;
    }
    const auto sequence = [&](const std::vector<at::Tensor>& all, int64_t width) {
      const at::Tensor whole = steps ? at::stack(all, 0) : empty(width);
      return form.batch_first ? whole.transpose(0, 1) : whole;
    };
    return std::vector<at::Tensor>{sequence(ys, outputs), h, c, lstm || gru ? sequence(gates, 4 * n) : at::Tensor(),
                                   lstm ? sequence(cells, n) : at::Tensor()};
  };
}

Kernel make_forward(const Node& node) {
  return [form = LayerForm(node), name = node.describe()](KernelContext& c) {
    const LayerInputs in = inputs_of(c, 0);
    check_layer(form, in, name);
    LayerOutputs out = layer_forward(form, in);
    c.out(0, std::move(out.y));
    c.out(1, std::move(out.h_n));
    c.out(2, std::move(out.c_n));
    c.out(3, std::move(out.gates));
    c.out(4, std::move(out.cells));
  };
}

Kernel make_backward(const Node& node) {
  return [form = LayerForm(node), name = node.describe()](KernelContext& c) {
    const LayerInputs in = inputs_of(c, 3);
    check_layer(form, in, name);
    const LayerOutputs saved{c.in(11), {}, {}, c.in_or_undefined(12), c.in_or_undefined(13)};
    const LayerGradients grads{c.in_or_undefined(0), c.in_or_undefined(1), c.in_or_undefined(2)};
    check_kept(form, in, saved, grads, name);
    std::array<bool, kLayerInputs> wanted;
    for (size_t i = 0; i < kLayerInputs; ++i) wanted[i] = c.wants(i) && c.has(3 + i);
    auto results = layer_backward(form, in, saved, grads, wanted);
    for (size_t i = 0; i < kLayerInputs; ++i)
      if (wanted[i]) c.out(i, std::move(results[i]));
  };
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", RecurrentLayer, "aten", function_kernel_of<composed>);
ORTMODULE_KERNEL("ai.ortmodule", RecurrentLayer, "cpu", make_forward);
ORTMODULE_KERNEL("ai.ortmodule", RecurrentLayerGrad, "aten", rerun_kernel_of<composed>);
ORTMODULE_KERNEL("ai.ortmodule", RecurrentLayerGrad, "cpu", make_backward);

}  // namespace ortmodule

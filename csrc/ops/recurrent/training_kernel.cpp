// Kernels of LSTMTraining, GRUTraining and their gradients: RecurrentLayer's, with gates in the standard's order.
//
// The order changes by a copy of the weights, which these operators' graphs can afford. On another device the tensors
// go to the host and the results come back: a graph of another tool may hold these operators, capture makes none.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "base/status.h"
#include "kernels/kernel_context.h"
#include "ops/recurrent/layer.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Order = std::vector<int64_t>;
// Gate k of torch's order is gate order[k] of the standard's, and back: i, o, f, c are i, f, g, o; z, r, h are r, z, n.
const Order kLstmToTorch{0, 2, 3, 1}, kLstmFromTorch{0, 3, 1, 2}, kGru{1, 0, 2};

at::Tensor reordered(const at::Tensor& t, const Order& order, int64_t axis) {
  const auto count = static_cast<int64_t>(order.size());
  ORTMODULE_CHECK(t.size(axis) % count == 0, kRuntime, "[LSTMTraining, GRUTraining] a tensor of ", t.sizes(),
                  " does not divide into ", count, " gates");
  const auto parts = t.chunk(count, axis);
  std::vector<at::Tensor> out;
  for (const int64_t k : order) out.push_back(parts[static_cast<size_t>(k)]);
  return at::cat(out, axis);
}

at::Tensor on_host(const at::Tensor& t) { return t.defined() ? t.cpu() : t; }

struct Training {
  CellKind cell;
  bool reverse_only, both;
  std::string name;
  Training(const Node& node, CellKind cell) : cell(cell), name(node.describe()) {
    const std::string direction = node.get_string("direction", "forward");
    reverse_only = direction == "reverse";
    both = direction == "bidirectional";
  }
  int64_t directions() const { return both ? 2 : 1; }
  LayerForm form(int64_t d) const { return {cell, reverse_only || d == 1, false}; }
  const Order& to_torch() const { return cell == CellKind::kLstm ? kLstmToTorch : kGru; }
  const Order& from_torch() const { return cell == CellKind::kLstm ? kLstmFromTorch : kGru; }

  LayerInputs inputs(int64_t d, const at::Tensor& x, const at::Tensor& w, const at::Tensor& r, const at::Tensor& b,
                     const at::Tensor& h0, const at::Tensor& c0) const {
    ORTMODULE_CHECK(w.dim() == 3 && r.dim() == 3 && w.size(0) == directions() && r.size(0) == directions(), kRuntime,
                    "[", cell == CellKind::kLstm ? "LSTM" : "GRU", "Training] W ", w.sizes(), " and R ", r.sizes(),
                    " are not for ", directions(), " directions (", name, ")");
    LayerInputs in{
        on_host(x), on_host(reordered(w[d], to_torch(), 0)), on_host(reordered(r[d], to_torch(), 0)), {}, {}, {}, {},
        {}};
    ORTMODULE_CHECK(!b.defined() || (b.dim() == 2 && b.size(0) == directions() && b.size(1) == 2 * w.size(1)), kRuntime,
                    "expected B of ", directions(), " x ", 2 * w.size(1), ", got ", b.sizes(), " (", name, ")");
    for (const at::Tensor& state : {h0, c0})
      ORTMODULE_CHECK(!state.defined() || (state.dim() == 3 && state.size(0) == directions()), kRuntime,
                      "expected a state for ", directions(), " directions, got ", state.sizes(), " (", name, ")");
    if (b.defined()) {
      const auto halves = b[d].chunk(2, 0);
      in.b_ih = on_host(reordered(halves[0], to_torch(), 0));
      in.b_hh = on_host(reordered(halves[1], to_torch(), 0));
    }
    if (h0.defined()) in.h0 = on_host(h0[d]);
    if (c0.defined()) in.c0 = on_host(c0[d]);
    check_layer(form(d), in, name);
    return in;
  }
};

template <CellKind cell>
Kernel make_training(const Node& node) {
  return [layer = Training(node, cell)](KernelContext& c) {
    constexpr bool lstm = cell == CellKind::kLstm;
    std::vector<at::Tensor> all, last, last_cells, cells, gates;
    for (int64_t d = 0; d < layer.directions(); ++d) {
      const LayerInputs in = layer.inputs(d, c.in(0), c.in(1), c.in(2), c.in_or_undefined(3), c.in_or_undefined(5),
                                          lstm ? c.in_or_undefined(6) : at::Tensor());
      LayerOutputs out = layer_forward(layer.form(d), in);
      all.push_back(out.y);
      last.push_back(out.h_n);
      if (lstm) last_cells.push_back(out.c_n), cells.push_back(out.cells);
      gates.push_back(
          reordered(lstm ? out.gates : out.gates.narrow(-1, 0, out.gates.size(-1) / 4 * 3), layer.from_torch(), -1));
    }
    const auto back = [&](const at::Tensor& t) { return t.to(c.in(0).device()); };
    c.out(0, back(at::stack(all, 1)));
    c.out(1, back(at::stack(last, 0)));
    if (lstm) {
      c.out(2, back(at::stack(last_cells, 0)));
      c.out(3, back(at::stack(cells, 1)));
    }
    c.out(lstm ? 4 : 2, back(at::stack(gates, 1)));
  };
}

// A GRU's gates do not hold the product behind the reset gate: it is made again from the outputs before.
at::Tensor with_product(const LayerForm& form, const LayerInputs& in, const at::Tensor& gates, const at::Tensor& y) {
  const int64_t steps = y.size(0), hidden = y.size(2);
  if (steps == 0) return at::cat({gates, y}, -1);
  const at::Tensor first = (in.h0.defined() ? in.h0 : at::zeros_like(y[0])).unsqueeze(0);
  const at::Tensor before =
      form.reverse ? at::cat({y.narrow(0, 1, steps - 1), first}, 0) : at::cat({first, y.narrow(0, 0, steps - 1)}, 0);
  const auto last = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, 2 * hidden, hidden) : t; };
  return at::cat({gates, at::linear(before, last(in.w_hh), last(in.b_hh))}, -1);
}

template <CellKind cell>
Kernel make_grad(const Node& node) {
  return [layer = Training(node, cell)](KernelContext& c) {
    constexpr bool lstm = cell == CellKind::kLstm;
    const size_t saved = 6, flowing = lstm ? 9 : 8;
    std::vector<std::vector<at::Tensor>> sums(6);
    for (int64_t d = 0; d < layer.directions(); ++d) {
      const auto of = [&](size_t i, int64_t axis) {
        if (!c.has(i)) return at::Tensor();
        ORTMODULE_CHECK(c.in(i).dim() == (axis == 1 ? 4 : 3) && c.in(i).size(axis) == layer.directions(), kRuntime,
                        "input ", i, " of shape ", c.in(i).sizes(), " is not for ", layer.directions(), " directions (",
                        layer.name, ")");
        return on_host(c.in(i).select(axis, d));
      };
      const LayerInputs in = layer.inputs(d, c.in(0), c.in(1), c.in(2), lstm ? at::Tensor() : c.in_or_undefined(3),
                                          c.in_or_undefined(lstm ? 4 : 5), lstm ? c.in_or_undefined(5) : at::Tensor());
      LayerOutputs out;
      out.y = of(saved, 1);
      if (lstm) out.cells = of(saved + 1, 1);
      out.gates = reordered(of(lstm ? saved + 2 : saved + 1, 1), layer.to_torch(), -1);
      if (!lstm) out.gates = with_product(layer.form(d), in, out.gates, out.y.contiguous());
      const LayerGradients grads{of(flowing, 1), of(flowing + 1, 0), lstm ? of(flowing + 2, 0) : at::Tensor()};
      check_kept(layer.form(d), in, out, grads, layer.name);
      const std::array<bool, kLayerInputs> wanted{c.wants(0), c.wants(1), c.wants(2),         c.wants(3),
                                                  c.wants(3), c.wants(4), lstm && c.wants(5), false};
      const auto g = layer_backward(layer.form(d), in, out, grads, wanted);
      if (c.wants(0)) sums[0].push_back(g[0]);
      for (size_t i : {1, 2})
        if (c.wants(i)) sums[i].push_back(reordered(g[i], layer.from_torch(), 0));
      if (c.wants(3))
        sums[3].push_back(at::cat({reordered(g[3], layer.from_torch(), 0), reordered(g[4], layer.from_torch(), 0)}, 0));
      if (c.wants(4)) sums[4].push_back(g[5]);
      if (lstm && c.wants(5)) sums[5].push_back(g[6]);
    }
    const auto back = [&](const at::Tensor& t) { return t.to(c.in(0).device()); };
    if (c.wants(0)) c.out(0, back(layer.both ? sums[0][0].add(sums[0][1]) : sums[0][0]));
    for (size_t i = 1; i < 6; ++i)
      if (!sums[i].empty()) c.out(i, back(at::stack(sums[i], 0)));
  };
}

}  // namespace

ORTMODULE_KERNEL("com.microsoft", LSTMTraining, "aten", make_training<CellKind::kLstm>);
ORTMODULE_KERNEL("com.microsoft", LSTMGrad, "aten", make_grad<CellKind::kLstm>);
ORTMODULE_KERNEL("com.microsoft", GRUTraining, "aten", make_training<CellKind::kGru>);
ORTMODULE_KERNEL("com.microsoft", GRUGrad, "aten", make_grad<CellKind::kGru>);

}  // namespace ortmodule

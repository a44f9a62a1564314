// Kernels of LoopGrad and ScanGrad: the forward body again, keeping each iteration's carried values, then the body's
// gradient from the last iteration to the first. Gradients of captured values are summed over the iterations.
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "base/status.h"
#include "graph/subgraph.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/subgraph.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;
using Ints = std::vector<int64_t>;

struct Iterated {
  explicit Iterated(const Node& node, size_t formals)
      : states(static_cast<size_t>(node.get_int("states", 0))),
        active(node.get_ints("active")),
        state_dys(node.get_ints("state_dys")),
        stacks(node.get_ints("stacks")),
        stack_dys(node.get_ints("stack_dys")),
        scanned(node.get_ints("scanned")),
        like(node.get_ints("like")),
        body(node, "body", formals),
        gradient(node, "gradient", formals, node.get_strings("dy_names")) {}

  size_t states;
  Ints active, state_dys, stacks, stack_dys, scanned, like;
  BodyCall body, gradient;
};

// The gradients of the carried values behind the last iteration.
Tensors last_gradients(const Iterated& it, const KernelContext& c, const Tensors& values) {
  Tensors grads;
  for (size_t a = 0; a < it.active.size(); ++a)
    grads.push_back(it.state_dys[a] >= 0 ? c.in(static_cast<size_t>(it.state_dys[a]))
                                         : at::zeros_like(values[static_cast<size_t>(it.active[a])]));
  return grads;
}

void add_to(at::Tensor& sum, at::Tensor term) {
  if (sum.defined())
    sum = at::add(sum, term);
  else
    sum = std::move(term);
}

// Hands out the gradients of captured values, which are the outputs from `first` on.
void give_captured(const Iterated& it, const KernelContext& c, size_t first, Tensors& sums) {
  for (size_t k = 0; k < sums.size(); ++k) {
    if (!c.wants(first + k)) continue;
    const at::Tensor& x = c.in(static_cast<size_t>(it.like[first + k]));
    c.out(first + k, sums[k].defined() ? std::move(sums[k]) : at::zeros_like(x));
  }
}

ORTMODULE_KERNEL("ai.ortmodule", LoopGrad, "aten", [](const Node& node) -> Kernel {
  const auto states = static_cast<size_t>(node.get_int("states", 0));
  return [it = Iterated(node, 2 + states)](KernelContext& c) {
    const int64_t limit = c.has(0) ? c.in(0).item().toLong() : INT64_MAX;
    bool go_on = !c.has(1) || c.in(1).item().toBool();
    const auto integer = at::TensorOptions().dtype(at::kLong).device(c.device());
    const at::Tensor yes = at::scalar_tensor(true, at::TensorOptions().dtype(at::kBool).device(c.device()));
    const auto formals = [&](int64_t i, const Tensors& values) {
      Tensors out{at::scalar_tensor(i, integer), yes};
      out.insert(out.end(), values.begin(), values.end());
      return out;
    };
    std::vector<Tensors> history;
    Tensors values;
    for (size_t i = 0; i < it.states; ++i) values.push_back(c.in_or_undefined(2 + i));
    for (int64_t i = 0; i < limit && go_on; ++i) {
      history.push_back(values);
      Tensors results = it.body.run(c, formals(i, values));
      go_on = results[0].item().toBool();
      values.assign(results.begin() + 1, results.end());
    }
    Tensors grads = last_gradients(it, c, values);
    const size_t first_captured = it.active.size();
    Tensors sums(it.like.size() - first_captured);
    for (auto i = static_cast<int64_t>(history.size()) - 1; i >= 0; --i) {
      Tensors dys = std::move(grads);
      for (const int64_t slot : it.stack_dys) dys.push_back(c.in(static_cast<size_t>(slot)).select(0, i));
      Tensors results = it.gradient.run(c, formals(i, history.back()), dys);
      history.pop_back();
      grads.assign(results.begin(), results.begin() + static_cast<long>(first_captured));
      for (size_t k = 0; k < sums.size(); ++k) add_to(sums[k], std::move(results[first_captured + k]));
    }
    for (size_t a = 0; a < grads.size(); ++a) c.out(a, std::move(grads[a]));
    give_captured(it, c, first_captured, sums);
  };
});

ORTMODULE_KERNEL("ai.ortmodule", ScanGrad, "aten", [](const Node& node) -> Kernel {
  const Ints input_axes = node.get_ints("input_axes"), input_directions = node.get_ints("input_directions"),
             output_axes = node.get_ints("output_axes"), output_directions = node.get_ints("output_directions");
  const size_t slices = input_axes.size();
  const auto states = static_cast<size_t>(node.get_int("states", 0));
  return [=, it = Iterated(node, states + slices)](KernelContext& c) {
    Ints axes;
    for (size_t k = 0; k < slices; ++k)
      axes.push_back(positive_axis(input_axes[k], c.in(it.states + k).dim(), "ScanGrad"));
    const int64_t length = c.in(it.states).size(axes[0]);
    const auto formals = [&](int64_t i, const Tensors& values) {
      Tensors out = values;
      for (size_t k = 0; k < slices; ++k)
        out.push_back(c.in(it.states + k).select(axes[k], input_directions[k] ? length - 1 - i : i));
      return out;
    };
    std::vector<Tensors> history;
    Tensors values;
    for (size_t i = 0; i < it.states; ++i) values.push_back(c.in(i));
    for (int64_t i = 0; i < length; ++i) {
      history.push_back(values);
      values = it.body.run(c, formals(i, values));
    }
    Tensors grads = last_gradients(it, c, values);
    const size_t first_slice = it.active.size(), first_captured = first_slice + it.scanned.size();
    Tensors sums(it.like.size() - first_captured);
    std::vector<Tensors> parts(it.scanned.size());  // from the last iteration to the first
    for (int64_t i = length - 1; i >= 0; --i) {
      Tensors dys = std::move(grads);
      for (size_t k = 0; k < it.stacks.size(); ++k) {
        const auto stack = static_cast<size_t>(it.stacks[k]);
        const at::Tensor& dy = c.in(static_cast<size_t>(it.stack_dys[k]));
        const int64_t axis = positive_axis(output_axes[stack], dy.dim(), "ScanGrad");
        dys.push_back(dy.select(axis, output_directions[stack] ? length - 1 - i : i));
      }
      Tensors results = it.gradient.run(c, formals(i, history.back()), dys);
      history.pop_back();
      grads.assign(results.begin(), results.begin() + static_cast<long>(first_slice));
      for (size_t k = 0; k < parts.size(); ++k) parts[k].push_back(std::move(results[first_slice + k]));
      for (size_t k = 0; k < sums.size(); ++k) add_to(sums[k], std::move(results[first_captured + k]));
    }
    for (size_t a = 0; a < grads.size(); ++a) c.out(a, std::move(grads[a]));
    for (size_t k = 0; k < parts.size(); ++k) {
      if (!c.wants(first_slice + k)) continue;
      const auto slice = static_cast<size_t>(it.scanned[k]);
      if (!input_directions[slice]) std::reverse(parts[k].begin(), parts[k].end());
      c.out(first_slice + k,
            parts[k].empty() ? at::zeros_like(c.in(it.states + slice)) : at::stack(parts[k], axes[slice]));
    }
    give_captured(it, c, first_captured, sums);
  };
});

}  // namespace
}  // namespace ortmodule

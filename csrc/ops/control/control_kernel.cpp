// Kernels of If, Loop and Scan: they run their subgraphs through kernels/subgraph.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "base/limits.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "kernels/subgraph.h"
#include "ops/control/scan.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr uint64_t kTensorBytes = 512;  // of a small tensor: itself, its storage, its elements

bool is_true(const at::Tensor& value, const char* op) {
  ORTMODULE_CHECK(value.defined() && value.has_storage() && value.numel() == 1, kRuntime, "[", op,
                  "] the condition should be one bool");
  return value.item().toBool();
}

ORTMODULE_KERNEL("", If, "aten", [](const Node& node) -> Kernel {
  return [taken = BodyCall(node, "then_branch", 0), other = BodyCall(node, "else_branch", 0)](KernelContext& c) {
    Tensors results = (is_true(c.in(0), "If") ? taken : other).run(c, {});
    for (size_t i = 0; i < results.size(); ++i) c.out(i, std::move(results[i]));
  };
});

ORTMODULE_KERNEL("", Loop, "aten", [](const Node& node) -> Kernel {
  const size_t inputs = explicit_input_count(node);
  const size_t carried = inputs > 2 ? inputs - 2 : 0;
  return [carried, body = BodyCall(node, "body", 2 + carried)](KernelContext& c) {
    const int64_t limit = c.has(0) ? c.int_value(0) : INT64_MAX;
    bool go_on = !c.has(1) || is_true(c.in(1), "Loop");
    Tensors values;
    for (size_t i = 0; i < carried; ++i) values.push_back(c.in_or_undefined(2 + i));
    std::vector<Tensors> stacks(body.output_count() - 1 - carried);
    const auto integer = at::TensorOptions().dtype(at::kLong), boolean = at::TensorOptions().dtype(at::kBool);
    const auto formals = [&](int64_t i) {
      Tensors out{at::scalar_tensor(i, integer), at::scalar_tensor(go_on, boolean)};
      out.insert(out.end(), values.begin(), values.end());
      return out;
    };
    Allowance::Collected collected;
    for (int64_t i = 0; i < limit && go_on; ++i) {
      Tensors given = formals(i);
      std::fill(values.begin(), values.end(), at::Tensor());  // the body alone holds them, and may write over them
      Tensors results = body.run(c, std::move(given));
      go_on = is_true(results[0], "Loop");
      for (size_t k = 0; k < carried; ++k) values[k] = std::move(results[1 + k]);
      for (size_t k = 0; k < stacks.size(); ++k) stacks[k].push_back(std::move(results[1 + carried + k]));
      collected.add(stacks.size() * kTensorBytes);
    }
    for (size_t k = 0; k < stacks.size(); ++k)
      if (c.wants(carried + k))
        c.out(carried + k, stacks[k].empty() ? body.empty_stack(c, formals(0), 1 + carried + k) : at::stack(stacks[k]));
    for (size_t k = 0; k < carried; ++k) c.out(k, std::move(values[k]));
  };
});

ORTMODULE_KERNEL("", Scan, "aten", [](const Node& node) -> Kernel {
  const ScanLayout layout(node);
  return [layout, body = BodyCall(node, "body", layout.states + layout.scanned)](KernelContext& c) {
    std::vector<int64_t> axes;
    int64_t length = -1;
    for (size_t k = 0; k < layout.scanned; ++k) {
      const at::Tensor& whole = c.in(layout.states + k);
      axes.push_back(positive_axis(layout.input_axes[k], whole.dim(), "Scan"));
      ORTMODULE_CHECK(length < 0 || whole.size(axes[k]) == length, kRuntime, "[Scan] scan inputs have lengths ", length,
                      " and ", whole.size(axes[k]));
      length = whole.size(axes[k]);
    }
    Tensors states;
    for (size_t i = 0; i < layout.states; ++i) states.push_back(c.in(i));
    std::vector<Tensors> stacks(layout.stacked);
    const auto formals = [&](Tensors out, int64_t i) {
      for (size_t k = 0; k < layout.scanned; ++k)
        out.push_back(c.in(layout.states + k).select(axes[k], layout.input_directions[k] ? length - 1 - i : i));
      return out;
    };
    for (int64_t i = 0; i < length; ++i) {
      Tensors results = body.run(c, formals(std::move(states), i));
      states.assign(std::make_move_iterator(results.begin()),
                    std::make_move_iterator(results.begin() + static_cast<long>(layout.states)));
      for (size_t k = 0; k < layout.stacked; ++k) stacks[k].push_back(std::move(results[layout.states + k]));
    }
    for (size_t k = 0; k < layout.stacked; ++k) {
      const size_t slot = layout.states + k;
      if (!c.wants(slot)) continue;
      if (layout.output_directions[k]) std::reverse(stacks[k].begin(), stacks[k].end());
      at::Tensor stacked;
      if (stacks[k].empty()) {  // the sizes of slices that are not there
        Tensors given = states;
        for (size_t n = 0; n < layout.scanned; ++n) {
          std::vector<int64_t> sizes = c.in(layout.states + n).sizes().vec();
          sizes.erase(sizes.begin() + axes[n]);
          given.push_back(at::empty(sizes, c.in(layout.states + n).options()));
        }
        stacked = body.empty_stack(c, std::move(given), slot);
      } else {
        stacked = at::stack(stacks[k]);
      }
      c.out(slot, stacked.movedim(0, positive_axis(layout.output_axes[k], stacked.dim(), "Scan")));
    }
    for (size_t i = 0; i < layout.states; ++i) c.out(i, std::move(states[i]));
  };
}).opset(9, 1 << 30);

}  // namespace
}  // namespace ortmodule

// Kernels of the collectives: torch's functional ones, found by name, so that no header of a backend is needed.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <utility>

#include "base/status.h"
#include "kernels/aten_bridge.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

c10::OperatorHandle functional(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({std::string("_c10d_functional::") + name, ""});
  ORTMODULE_CHECK(found.has_value(), kUnsupported, "this PyTorch has no collectives (_c10d_functional::", name, ")");
  return *found;
}

at::Tensor call(const c10::OperatorHandle& function, torch::jit::Stack stack) {
  function.callBoxed(stack);
  return std::move(stack.at(0)).toTensor();
}

at::Tensor wait(const at::Tensor& started) {
  static const c10::OperatorHandle function = functional("wait_tensor");
  return call(function, {started});
}

// A group that is written in Python has none of torch's backends, and no gather into a tensor that is given.
bool has_backends(const std::string& group) { return !c10d::resolve_process_group(group)->getDeviceTypes().empty(); }

// What a collective is told besides its tensor.
struct Collective {
  explicit Collective(const Node& node)
      : group(node.get_string("group", "")),
        reduction(node.get_string("reduction", "sum")),
        world(node.get_int("world", 1)),
        async(node.get_int("async", 0) != 0) {}

  std::string group, reduction;
  int64_t world;
  bool async;
};

torch::jit::Stack all_gather(const Collective& c, const at::Tensor& x) { return {x, c.world, c.group}; }
// Into a tensor of ours: without one torch uses an operation of gloo whose name is a string on the heap, which the two
// threads of a group write at once without a lock (torch 2.11 to 2.13: freed twice where two gathers are on their way).
torch::jit::Stack all_gather_into(const Collective& c, const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  if (sizes.empty())
    sizes.push_back(c.world);
  else
    sizes[0] *= c.world;
  return {x, c.world, c.group, at::empty(sizes, x.options())};
}
torch::jit::Stack reduce_scatter(const Collective& c, const at::Tensor& x) {
  return {x, c.reduction, c.world, c.group};
}
torch::jit::Stack all_reduce(const Collective& c, const at::Tensor& x) { return {x, c.reduction, c.group}; }
torch::jit::Stack all_to_all(const Collective& c, const at::Tensor& x) {
  const std::vector<int64_t> sizes(static_cast<size_t>(c.world), x.size(0) / c.world);
  return {x, sizes, sizes, c.group};
}

using Arguments = torch::jit::Stack (*)(const Collective&, const at::Tensor&);

Kernel make(const Node& node, const char* name, Arguments arguments) {
  const c10::OperatorHandle function = functional(name);
  const bool casts = arguments == all_gather && node.find_attribute("to");
  const at::ScalarType to = casts ? to_scalar_type(static_cast<DType>(node.get_int("to", 1))) : at::kFloat;
  const bool gathers = arguments == all_gather, divides = !gathers && arguments != all_reduce;
  return [function, arguments, casts, to, gathers, divides, collective = Collective(node),
          described = node.describe()](KernelContext& c) {
    const at::Tensor x = (casts ? c.in(0).to(to) : c.in(0)).contiguous();
    ORTMODULE_CHECK(!divides || x.size(0) % collective.world == 0, kRuntime, "the first axis of ", x.size(0),
                    " cannot be divided among ", collective.world, " ranks (", described, ")");
    at::Tensor y;
    if (gathers && has_backends(collective.group)) {
      static const c10::OperatorHandle into = functional("all_gather_into_tensor_out");
      const bool in_pairs = x.is_complex();  // which the others see to themselves
      y = call(into, all_gather_into(collective, in_pairs ? at::view_as_real(x) : x));
      if (in_pairs) y = at::view_as_complex(y);
    } else {
      y = call(function, arguments(collective, x));
    }
    c.out(0, collective.async ? std::move(y) : wait(y));
  };
}

}  // namespace

ORTMODULE_KERNEL("ai.ortmodule", AllGather, "aten",
                 [](const Node& node) -> Kernel { return make(node, "all_gather_into_tensor", all_gather); });
ORTMODULE_KERNEL("ai.ortmodule", ReduceScatter, "aten",
                 [](const Node& node) -> Kernel { return make(node, "reduce_scatter_tensor", reduce_scatter); });
ORTMODULE_KERNEL("ai.ortmodule", AllReduce, "aten",
                 [](const Node& node) -> Kernel { return make(node, "all_reduce", all_reduce); });
ORTMODULE_KERNEL("ai.ortmodule", AllToAll, "aten",
                 [](const Node& node) -> Kernel { return make(node, "all_to_all_single", all_to_all); });
ORTMODULE_KERNEL("ai.ortmodule", CopyToRanks, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, c.in(0)); }; });
ORTMODULE_KERNEL("ai.ortmodule", CollectiveWait, "aten",
                 [](const Node&) -> Kernel { return [](KernelContext& c) { c.out(0, wait(c.in(0))); }; });

}  // namespace ortmodule

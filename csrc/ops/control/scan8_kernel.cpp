// Kernel of Scan in version 8: one loop per element of the batch. Outputs behind the end of a short sequence are zeros.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include "base/status.h"
#include "graph/subgraph.h"
#include "kernels/kernel_context.h"
#include "kernels/subgraph.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;

ORTMODULE_KERNEL("", Scan, "aten", [](const Node& node) -> Kernel {
  const size_t values = explicit_input_count(node) - 1;
  const size_t states = values - static_cast<size_t>(node.get_int("num_scan_inputs", 1));
  std::vector<int64_t> directions = node.get_ints("directions");
  if (directions.empty()) directions.assign(values - states, 0);
  ORTMODULE_CHECK_GRAPH(directions.size() == values - states, "[Scan] the attribute 'directions' has ",
                        directions.size(), " elements instead of ", values - states, " (", node.describe(), ")");
  return [=, body = BodyCall(node, "body", values)](KernelContext& c) {
    for (size_t i = 0; i < values; ++i)
      ORTMODULE_CHECK(c.in(1 + i).dim() >= (i < states ? 1 : 2), kRuntime, "[Scan] input ", 1 + i,
                      " lacks its batch or sequence axis");
    const int64_t batch = c.in(1 + states).size(0), whole = c.in(1 + states).size(1);
    for (size_t i = 0; i < values; ++i)
      ORTMODULE_CHECK(c.in(1 + i).size(0) == batch && (i < states || c.in(1 + i).size(1) == whole), kRuntime,
                      "[Scan] the inputs have different batches or lengths");
    ORTMODULE_CHECK(batch > 0, kRuntime, "[Scan] an empty batch is not supported in version 8");
    std::vector<int64_t> lengths(static_cast<size_t>(batch), whole);
    if (c.has(0)) lengths = c.ints(0);
    ORTMODULE_CHECK(lengths.size() == static_cast<size_t>(batch), kRuntime, "[Scan] there are ", lengths.size(),
                    " lengths for a batch of ", batch);
    std::vector<Tensors> results(body.output_count());  // by output, one per element of the batch
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      ORTMODULE_CHECK(length >= 1 && length <= whole, kRuntime, "[Scan] a length of ", length, " of ", whole);
      Tensors carried;
      for (size_t i = 0; i < states; ++i) carried.push_back(c.in(1 + i).select(0, b));
      std::vector<Tensors> stacks(body.output_count() - states);
      for (int64_t t = 0; t < length; ++t) {
        for (size_t k = states; k < values; ++k)
          carried.push_back(c.in(1 + k).select(0, b).select(0, directions[k - states] ? length - 1 - t : t));
        Tensors outputs = body.run(c, std::move(carried));
        carried.assign(outputs.begin(), outputs.begin() + static_cast<long>(states));
        for (size_t k = 0; k < stacks.size(); ++k) stacks[k].push_back(outputs[states + k]);
      }
      for (size_t i = 0; i < states; ++i) results[i].push_back(std::move(carried[i]));
      for (size_t k = 0; k < stacks.size(); ++k) {
        const at::Tensor stacked = at::stack(stacks[k]);
        std::vector<int64_t> pad(static_cast<size_t>(2 * stacked.dim()), 0);
        pad.back() = whole - length;
        results[states + k].push_back(at::constant_pad_nd(stacked, pad));
      }
    }
    for (size_t i = 0; i < results.size(); ++i)
      if (c.wants(i)) c.out(i, at::stack(results[i]));
  };
}).opset(8, 8);

}  // namespace
}  // namespace ortmodule

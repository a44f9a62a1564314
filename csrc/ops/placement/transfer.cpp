// Copies between places: MemcpyToHost and MemcpyToDevice, which placement inserts (placement/partition.h).
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void transfer(OpRecord& record) {
  record.input("x")
      .output("y")
      .traits(kTakesContainers | kTransfer)
      .not_differentiable()  // gradients are built before nodes have places
      .infer([](InferContext& c) {
        c.same_as(0, 0);
        if (const auto known = c.dims_value(0)) c.known(0, *known);
      });
}

ORTMODULE_OP("ai.ortmodule", MemcpyToHost, 1).apply(transfer);
ORTMODULE_OP("ai.ortmodule", MemcpyToDevice, 1).apply(transfer);

}  // namespace
}  // namespace ortmodule

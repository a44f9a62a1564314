// NonNegative: positions on their way to an operator that counts negative ones from the end, where PyTorch's refuses
// them (embedding, index_select, gather, scatter and their kin).
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// The positions as they are. Beyond the end the operator itself refuses. Where a look would wait for the device there
// is none.
ORTMODULE_OP("ai.ortmodule", NonNegative, 1)
    .input("positions")
    .output("output")
    .traits(kElementwise | kCheap | kView)
    .not_differentiable()
    .infer([](InferContext& c) {
      if (c.dtype(0) != DType::kUndefined && !is_integer(c.dtype(0)))
        c.error(str("expected integers, got ", dtype_name(c.dtype(0))));
      infer_same(c);
    })
    .body([](BodyContext& c) { c.out(0, c.emit("Identity", {c.in(0)})); });

}  // namespace
}  // namespace ortmodule

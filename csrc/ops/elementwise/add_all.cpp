// ai.ortmodule::AddAll: the same number added to many tensors as one node, where a launch costs
// (transforms/join_launches.h): the counters of a model's batch norms.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

// Every input plus `value`, in the inputs' type, which is one of integers.
ORTMODULE_OP("ai.ortmodule", AddAll, 1)
    .variadic_input("inputs")
    .output("outputs", Presence::kVariadic)
    .required_attr("value", AttrKind::kInt)
    .infer([](InferContext& c) {
      for (size_t i = 0; i < c.input_count(); ++i) {
        if (!c.node().input(i)) c.error(str("input ", i, " is missing"));
        c.same_as(i, i);
      }
    })
    .not_differentiable()
    .body([](BodyContext& c) {
      for (size_t i = 0; i < c.node().outputs().size(); ++i)
        if (c.wants(i)) c.out(i, c.emit("Add", {c.in(i), c.scalar(c.node().get_int("value", 0), c.in(i))}));
    });

}  // namespace ortmodule

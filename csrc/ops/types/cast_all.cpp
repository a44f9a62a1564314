// ai.ortmodule::CastAll: the Casts of many tensors to one type as one node, where a launch costs (transforms/
// join_launches.h): the narrow copies that autocast makes of a model's weights.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

// Every input in the type `to`.
ORTMODULE_OP("ai.ortmodule", CastAll, 1)
    .variadic_input("inputs")
    .output("outputs", Presence::kVariadic)
    .required_attr("to", AttrKind::kInt)
    .infer([](InferContext& c) {
      const DType to = static_cast<DType>(c.attr_int("to", 0));
      for (size_t i = 0; i < c.input_count(); ++i)
        if (!c.node().input(i)) c.error(str("input ", i, " is missing"));
      for (size_t i = 0; i < c.input_count(); ++i)
        c.out(i, to, c.shape(i) ? std::optional<Shape>(*c.shape(i)) : std::nullopt);
    })
    .not_differentiable()
    .body([](BodyContext& c) {
      for (size_t i = 0; i < c.node().outputs().size(); ++i)
        if (c.wants(i)) c.out(i, c.emit("Cast", {c.in(i)}, {{"to", c.node().get_int("to", 0)}}));
    });

}  // namespace ortmodule

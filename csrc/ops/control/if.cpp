// If: one of two subgraphs, chosen by a bool that is read on the host.
//
// Its inputs are the condition and the values that the branches capture (Note [Captured values] in graph/subgraph.h).
// The gradient is in gradient.cpp beside it.
#include "base/status.h"
#include "graph/subgraph.h"
#include "ops/control/control_gradient.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("", If, 11)
    .host_input("cond")
    .variadic_input("captured")
    .output("outputs", Presence::kVariadic)
    .required_attr("then_branch", AttrKind::kGraph)
    .required_attr("else_branch", AttrKind::kGraph)
    .traits(kTakesContainers)
    .infer([](InferContext& c) {
      if (c.dtype(0) != DType::kBool) c.error(str("the condition should be bool, got ", dtype_name(c.dtype(0))));
      if (explicit_input_count(c.node()) != 1) c.error("takes one input, the condition");
      BodyTypes taken(c, "then_branch", 0), other(c, "else_branch", 0);
      taken.infer();
      other.infer();
      const size_t count = c.node().outputs().size();
      if (taken.output_count() != count || other.output_count() != count)
        c.error(
            str("has ", count, " outputs, its branches have ", taken.output_count(), " and ", other.output_count()));
      for (size_t i = 0; i < count; ++i) {
        TypeInfo type = join(c, i, taken.outward(i, i), other.outward(i, i));
        c.out(i, type.dtype, std::move(type.shape));
      }
    })
    .grad({"captured"}, if_gradient);

}  // namespace
}  // namespace ortmodule

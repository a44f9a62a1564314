// Claimed: nodes that a provider runs as one (placement/provider.h, Claim).
//
// Inputs and outputs are the body's, in its order; `claim` is the provider's word for what they are together. A
// provider's kernel may do them in any way; without one the body is run as it stands.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("ai.ortmodule", Claimed, 1)
    .variadic_input("x")
    .output("y", Presence::kVariadic)
    .required_attr("body", AttrKind::kGraph)
    .required_attr("claim", AttrKind::kString)
    .traits(kProvidersBody)
    .not_differentiable()  // gradients are built before nodes have places
    .infer([](InferContext& c) {
      for (size_t i = 0; i < c.input_count(); ++i)
        if (!c.node().input(i)) c.error(str("input ", i, " is missing"));
      BodyTypes body(c, "body", c.input_count());
      if (body.graph().inputs().size() != c.input_count() || body.output_count() < c.node().outputs().size())
        c.error(str("has ", c.input_count(), " inputs, its body ", body.graph().inputs().size()));
      for (size_t i = 0; i < c.input_count(); ++i) body.set_formal(i, body.inward(c.node().input(i)->type()));
      body.infer();
      for (size_t i = 0; i < c.node().outputs().size(); ++i) {
        TypeInfo type = body.outward(i, i);
        c.out(i, type.dtype, std::move(type.shape));
      }
    });

}  // namespace
}  // namespace ortmodule

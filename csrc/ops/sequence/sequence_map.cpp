// SequenceMap: applies a subgraph to each element of a sequence; further inputs are sequences that are read along, or
// tensors that every call gets.
#include "base/container_type.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("", SequenceMap, 17)
    .input("input_sequence")
    .variadic_input("additional_inputs")
    .output("out_sequence", Presence::kVariadic)
    .required_attr("body", AttrKind::kGraph)
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      if (!is_sequence(c.dtype(0)) || is_optional(c.dtype(0)))
        c.error(str("input 0 should be a sequence, got ", dtype_name(c.dtype(0))));
      const size_t inputs = explicit_input_count(c.node());
      BodyTypes body(c, "body", inputs);
      for (size_t i = 0; i < inputs; ++i) {
        if (!c.has(i)) c.error(str("input ", i, " is absent"));
        const TypeInfo& type = c.node().input(i)->type();
        body.set_formal(i,
                        is_sequence(type.dtype) ? TypeInfo{element_of(type.dtype), std::nullopt} : body.inward(type));
      }
      body.infer();
      if (c.node().outputs().size() > body.output_count())
        c.error(str("has ", c.node().outputs().size(), " outputs, its body has ", body.output_count()));
      for (size_t i = 0; i < c.node().outputs().size(); ++i) {
        if (is_container(body.output(i).dtype)) c.error(str("output ", i, " of the body should be a tensor"));
        c.out(i, sequence_of(body.output(i).dtype), std::nullopt);
      }
    });

}  // namespace
}  // namespace ortmodule

// Loop: a subgraph that runs up to M times or until its condition is false.
//
// Body inputs: iteration number, condition, carried values, captured values; outputs: condition, carried values, scan
// outputs, which are stacked on a new axis 0.
#include "base/container_type.h"
#include "base/status.h"
#include "graph/subgraph.h"
#include "ops/control/control_gradient.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

void infer_loop(InferContext& c) {
  const size_t explicit_inputs = explicit_input_count(c.node());
  const size_t carried = explicit_inputs > 2 ? explicit_inputs - 2 : 0;
  BodyTypes body(c, "body", 2 + carried);
  if (body.output_count() < 1 + carried || c.node().outputs().size() > body.output_count() - 1)
    c.error(str("carries ", carried, " values and has ", c.node().outputs().size(), " outputs, its body has ",
                body.output_count(), " outputs"));
  body.set_formal(0, {DType::kInt64, Shape{}});
  body.set_formal(1, {DType::kBool, Shape{}});
  std::vector<size_t> formals, outputs;
  for (size_t i = 0; i < carried; ++i) {
    if (!c.has(2 + i)) c.error(str("the carried value ", i, " is absent"));
    body.set_formal(2 + i, body.inward(c.node().input(2 + i)->type()));
    formals.push_back(2 + i);
    outputs.push_back(1 + i);
  }
  body.reach_fixed_point(formals, outputs);
  for (size_t i = 0; i < c.node().outputs().size(); ++i) {
    TypeInfo type = body.outward(1 + i, i);
    if (i >= carried) {
      if (is_container(type.dtype)) c.error(str("the scan output ", i - carried, " should be a tensor"));
      if (type.shape) type.shape->insert(type.shape->begin(), output_dim(c, i, type.shape->size()));
    }
    c.out(i, type.dtype, std::move(type.shape));
  }
}

ORTMODULE_OP("", Loop, 11)
    .host_input("M", Presence::kOptional)
    .host_input("cond", Presence::kOptional)
    .variadic_input("v_initial")
    .output("v_final_and_scan_outputs", Presence::kVariadic)
    .required_attr("body", AttrKind::kGraph)
    .traits(kTakesContainers)
    .host_formals(2, 1)
    .infer(infer_loop)
    .grad({"v_initial"}, loop_gradient);

}  // namespace
}  // namespace ortmodule

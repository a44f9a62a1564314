// Scan as version 8 of ai.onnx has it: axis 0 of every tensor is the batch, axis 1 the sequence, and the sequences of a
// batch may have lengths of their own. Kept for old models; it has no gradient.
#include "base/status.h"
#include "graph/subgraph.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {
namespace {

// A type without its first `count` axes.
TypeInfo inner(const InferContext& c, TypeInfo type, size_t count) {
  if (!type.shape) return type;
  if (type.shape->size() < count) c.error(str("an input of type ", type.text(), " lacks its batch or sequence axis"));
  type.shape->erase(type.shape->begin(), type.shape->begin() + static_cast<long>(count));
  return type;
}

void infer_scan(InferContext& c) {
  const size_t inputs = explicit_input_count(c.node());
  const int64_t scanned = c.attr_int("num_scan_inputs", 0);
  if (scanned < 1 || static_cast<uint64_t>(scanned) >= inputs)
    c.error(str("num_scan_inputs is ", scanned, " of ", inputs, " inputs, the first one the lengths"));
  const size_t values = inputs - 1, states = values - static_cast<size_t>(scanned);
  BodyTypes body(c, "body", values);
  if (body.output_count() < states || c.node().outputs().size() > body.output_count())
    c.error(str("has ", c.node().outputs().size(), " outputs, its body has ", body.output_count()));
  std::vector<size_t> carried;
  std::optional<Dim> batch, length;
  for (size_t i = 0; i < values; ++i) {
    if (!c.has(1 + i)) c.error(str("input ", 1 + i, " is absent"));
    const TypeInfo& type = c.node().input(1 + i)->type();
    body.set_formal(i, body.inward(inner(c, type, i < states ? 1 : 2)));
    if (i < states) carried.push_back(i);
    if (type.shape) batch = type.shape->at(0);
    if (type.shape && i >= states) length = type.shape->at(1);
  }
  body.reach_fixed_point(carried, carried);
  for (size_t i = 0; i < c.node().outputs().size(); ++i) {
    TypeInfo type = body.outward(i, i);
    if (type.shape) {
      const size_t rank = type.shape->size();
      if (i >= states) type.shape->insert(type.shape->begin(), length ? *length : output_dim(c, i, rank));
      type.shape->insert(type.shape->begin(), batch ? *batch : output_dim(c, i, rank + 1));
    }
    c.out(i, type.dtype, std::move(type.shape));
  }
}

ORTMODULE_OP("", Scan, 8)
    .host_input("sequence_lens", Presence::kOptional)
    .variadic_input("initial_state_and_scan_inputs")
    .output("final_state_and_scan_outputs", Presence::kVariadic)
    .required_attr("body", AttrKind::kGraph)
    .required_attr("num_scan_inputs", AttrKind::kInt)
    .attr("directions", AttrKind::kInts)
    .infer(infer_scan)
    .not_differentiable();

}  // namespace
}  // namespace ortmodule

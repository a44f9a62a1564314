// Scan: a subgraph that runs once per slice of its scan inputs, carrying state values and stacking scan outputs.
//
// Version 8, whose tensors have a batch axis in front, is in scan8.cpp.
#include "ops/control/scan.h"

#include "base/status.h"
#include "graph/subgraph.h"
#include "ops/control/control_gradient.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/subgraphs/subgraph_types.h"

namespace ortmodule {

ScanLayout::ScanLayout(const Node& node) {
  const auto check = [&](bool right, const std::string& what) {
    ORTMODULE_CHECK_GRAPH(right, "[Scan] ", what, " (", node.describe(), ")");
  };
  const auto body = find_subgraph(node, "body");
  check(body != nullptr, "the attribute 'body' holds no graph");
  const size_t inputs = explicit_input_count(node);
  const int64_t count = node.get_int("num_scan_inputs", 0);
  check(count >= 1 && static_cast<uint64_t>(count) <= inputs,
        str("num_scan_inputs is ", count, " of ", inputs, " inputs"));
  for (size_t i = 0; i < inputs; ++i) check(node.input(i), str("input ", i, " is absent"));
  scanned = static_cast<size_t>(count);
  states = inputs - scanned;
  check(body->outputs().size() >= states,
        str("the body has ", body->outputs().size(), " outputs for ", states, " states"));
  stacked = body->outputs().size() - states;
  const auto list = [&](const char* name, size_t size) {
    std::vector<int64_t> values = node.get_ints(name);
    if (values.empty()) values.assign(size, 0);
    check(values.size() == size, str("the attribute '", name, "' has ", values.size(), " elements instead of ", size));
    return values;
  };
  input_axes = list("scan_input_axes", scanned);
  input_directions = list("scan_input_directions", scanned);
  output_axes = list("scan_output_axes", stacked);
  output_directions = list("scan_output_directions", stacked);
}

namespace {

void infer_scan(InferContext& c) {
  const ScanLayout layout(c.node());
  BodyTypes body(c, "body", layout.states + layout.scanned);
  if (c.node().outputs().size() > layout.states + layout.stacked)
    c.error(str("has ", c.node().outputs().size(), " outputs, its body has ", body.output_count()));
  std::vector<size_t> carried;
  for (size_t i = 0; i < layout.states; ++i) {
    body.set_formal(i, body.inward(c.node().input(i)->type()));
    carried.push_back(i);
  }
  std::optional<Dim> length;
  for (size_t k = 0; k < layout.scanned; ++k) {
    TypeInfo slice = c.node().input(layout.states + k)->type();
    if (slice.shape) {
      const size_t axis = c.axis(layout.input_axes[k], slice.shape->size());
      const Dim d = (*slice.shape)[axis];
      if (length && length->is_known() && d.is_known() && *length != d)
        c.error(str("scan inputs have lengths ", length->text(), " and ", d.text()));
      if (!length || d.is_known()) length = d;
      slice.shape->erase(slice.shape->begin() + static_cast<long>(axis));
    }
    body.set_formal(layout.states + k, body.inward(slice));
  }
  body.reach_fixed_point(carried, carried);
  for (size_t i = 0; i < c.node().outputs().size(); ++i) {
    TypeInfo type = body.outward(i, i);
    if (i >= layout.states && type.shape) {
      const size_t axis = c.axis(layout.output_axes[i - layout.states], type.shape->size() + 1);
      type.shape->insert(type.shape->begin() + static_cast<long>(axis),
                         length ? *length : output_dim(c, i, type.shape->size()));
    }
    c.out(i, type.dtype, std::move(type.shape));
  }
}

ORTMODULE_OP("", Scan, 9)
    .variadic_input("initial_state_and_scan_inputs")
    .output("final_state_and_scan_outputs", Presence::kVariadic)
    .required_attr("body", AttrKind::kGraph)
    .required_attr("num_scan_inputs", AttrKind::kInt)
    .attr("scan_input_axes", AttrKind::kInts)
    .attr("scan_input_directions", AttrKind::kInts)
    .attr("scan_output_axes", AttrKind::kInts)
    .attr("scan_output_directions", AttrKind::kInts)
    .infer(infer_scan)
    .grad({"initial_state_and_scan_inputs"}, scan_gradient);

}  // namespace
}  // namespace ortmodule

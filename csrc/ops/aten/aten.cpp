// org.pytorch.aten::ATen: any operator of PyTorch's dispatcher as a node, its gradient by autograd on that operator.
//
// Note [Arguments of an ATen node]
// `operator` and `overload` name the schema. `arguments` has one string per schema argument, in schema order:
//   t        the next input                        n        None
//   T3       the next 3 inputs, as Tensor[]        Ttnt     Tensor?[]: t takes an input, n is None
//   i:EXPR   int                                   I:e1,e2  int list; an expression may name symbols
//   f:REPR   float                                 F:r1,r2  float list
//   b:0      bool                                  B:0,1    bool list
//   s:TEXT   string                                d:1      scalar type, as an ONNX element type
//   c:i:3    Scalar (i, f or b)                    v:cpu    device
//   l:strided  layout                              m:contiguous_format  memory format
//   -        the schema's default
// `symbols` names the 0-d int64 inputs behind the tensors: sizes that only the run knows.
//
// Note [Autograd state of an ATen node]
// When a gradient flows, the formula gives the forward node further outputs: behind the operator's own come the results
// with their autograd history ("saved_outputs" lists which), then one handle of no elements per input that wants a
// gradient ("saved_inputs"). Backward asks autograd for the gradients by these handles, which costs the time and the
// memory of eager's backward. The operator's own outputs are detached, so nothing else sees a history.
#include <algorithm>

#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void aten_gradient(GradContext& c) {
  Node& node = c.node();
  const size_t outputs = node.outputs().size(), inputs = c.input_count() - node.get_strings("symbols").size();
  ORTMODULE_INTERNAL(!node.find_attribute("saved_outputs"), node.describe(), " was differentiated twice");
  std::vector<int64_t> saved_outputs, saved_inputs;
  std::vector<NodeArg*> arguments, state;
  for (size_t i = 0; i < outputs; ++i) {
    if (!c.GO(i)) continue;
    saved_outputs.push_back(static_cast<int64_t>(i));
    arguments.push_back(c.GO(i));
  }
  for (size_t i = 0; i < inputs; ++i) {
    if (c.needs(i)) saved_inputs.push_back(static_cast<int64_t>(i));
  }
  if (saved_outputs.empty() || saved_inputs.empty()) return;
  const auto keep = [&](TypeInfo type, const char* what) {
    NodeArg* value = c.graph().materialize_output(&node, outputs + state.size(), node.name() + what);
    value->set_type(std::move(type));
    state.push_back(value);
  };
  for (int64_t i : saved_outputs) keep(node.output(static_cast<size_t>(i))->type(), "_history");
  for (int64_t i : saved_inputs) keep({c.I(static_cast<size_t>(i))->type().dtype, Shape{Dim(0)}}, "_handle");
  node.set_attribute("saved_outputs", saved_outputs);
  node.set_attribute("saved_inputs", saved_inputs);
  node.set_attribute("outputs", static_cast<int64_t>(outputs));

  arguments.insert(arguments.end(), state.begin(), state.end());
  const auto grads = c.emit_n("org.pytorch.aten::ATenGrad", arguments, saved_inputs.size(),
                              {{"grads", static_cast<int64_t>(saved_outputs.size())}});
  for (size_t j = 0; j < saved_inputs.size(); ++j) {
    const auto slot = static_cast<size_t>(saved_inputs[j]);
    grads[j]->set_type(c.I(slot)->type());
    c.GI(slot, grads[j]);
  }
}

}  // namespace

// Types come from the importer: only PyTorch knows the shape rules, and capture has already asked it.
ORTMODULE_OP("org.pytorch.aten", ATen, 1)
    .variadic_input("inputs")
    .output("outputs", Presence::kVariadic)
    .required_attr("operator", AttrKind::kString)
    .attr("overload", AttrKind::kString)
    .attr("arguments", AttrKind::kStrings)
    .attr("symbols", AttrKind::kStrings)
    .attr("no_grad_inputs", AttrKind::kInts)
    .attr("outputs", AttrKind::kInt)
    .attr("saved_outputs", AttrKind::kInts)
    .attr("saved_inputs", AttrKind::kInts)
    .traits(kOpaque | kRandom)
    .infer([](InferContext&) {})
    .grad({"inputs"}, aten_gradient);

// dy..., as many results with history, handles... -> a gradient per handle, with its input's type
ORTMODULE_OP("org.pytorch.aten", ATenGrad, 1)
    .variadic_input("inputs")
    .output("grads", Presence::kVariadic)
    .required_attr("grads", AttrKind::kInt)
    .traits(kOpaque)
    .infer([](InferContext&) {})
    .not_differentiable();

}  // namespace ortmodule

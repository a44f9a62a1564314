// Operators that hand elements on unchanged: Where, Identity, Copy, StopGradient, WithValue, Expect.
#include "base/status.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("", Where, 9)
    .input("condition")
    .input("X")
    .input("Y")
    .output("output")
    .traits(kElementwise | kCheap)
    .no_grad({"condition"})
    .infer([](InferContext& c) {
      if (c.dtype(1) != c.dtype(2))
        c.error(str("X and Y should have one type, got ", dtype_name(c.dtype(1)), " and ", dtype_name(c.dtype(2))));
      auto values = c.broadcast(c.shape(1), c.shape(2));
      c.out(0, c.dtype(1), c.broadcast(c.shape(0), values ? &*values : nullptr));
    })
    .grad({"X", "Y"},
          [](GradContext& c) {
            NodeArg* zero = c.scalar(0, c.GO(0));
            if (c.needs(1)) c.GI(1, c.reduce_to(c.emit("Where", {c.I(0), c.GO(0), zero}), c.I(1)));
            if (c.needs(2)) c.GI(2, c.reduce_to(c.emit("Where", {c.I(0), zero, c.GO(0)}), c.I(2)));
          })
    .fuses(instruction<Opcode::kWhere>);

ORTMODULE_OP("", Identity, 1)
    .input("input")
    .output("output")
    .infer(infer_same)
    .traits(kElementwise | kCheap | kView | kIdentity | kTakesContainers)
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.GO(0)); });

// Identity in memory of its own: a result that whoever gets it may write, and what stays when its source is written.
// Backward does not make it again, of what the source may be by then. `of_input`: it is needed only where its source is
// a graph input or a view of one.
ORTMODULE_OP("ai.ortmodule", Copy, 1)
    .input("input")
    .output("output")
    .infer(infer_same)
    .attr("of_input", AttrKind::kInt)
    .traits(kElementwise | kCheap)
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.GO(0)); })
    .recompute([](const Node&) -> std::optional<RecomputeForm> { return std::nullopt; })
    .body([](BodyContext& c) { c.out(0, c.emit("Identity", {c.in(0)})); });

// detach: the value passes, the gradient does not. Not kIdentity, or a pass would drop it before differentiation.
//
// `first_order`: it is part of a formula whose first derivative is right, and of which a second one is had in another
// way (compile/derivative_graph.cpp). 1: the value is a factor of the first derivative, which itself has the
// derivatives of the source. 2: no gradient comes back to the source, for it cancels itself out; what is computed of it
// may have one.
ORTMODULE_OP("ai.ortmodule", StopGradient, 1)
    .input("input")
    .output("output")
    .attr("first_order", AttrKind::kInt)
    .infer(infer_same)
    .traits(kElementwise | kCheap | kView | kMeantEnd)
    .not_differentiable()
    .body([](BodyContext& c) { c.out(0, c.emit("Identity", {c.in(0)})); });

// A write that autograd does not see, and a value whose own derivative is worse than that of another formula: the
// elements are the value's, the gradient is that of the history.
ORTMODULE_OP("ai.ortmodule", WithValue, 1)
    .input("value")
    .input("history")
    .output("output")
    .traits(kCheap | kView | kBodyOfValues | kMeantEnd)
    .no_grad({"value"})
    .infer(infer_same)
    .grad({"history"}, [](GradContext& c) { c.GI(1, c.GO(0)); })
    .body([](BodyContext& c) { c.out(0, c.emit("Identity", {c.in(0)})); });

// The answer, one element, to a question that the forward asked when it was captured. A run in which it is not
// `expected` ends there: the graph holds for that answer alone. Nothing needs to read the output.
ORTMODULE_OP("ai.ortmodule", Expect, 1)
    .host_input("answer")
    .output("output")
    .required_attr("expected", AttrKind::kInt)
    .attr("question", AttrKind::kString)
    .infer(infer_same)
    .traits(kSideEffect | kHostOutput)
    .not_differentiable()
    .body([](BodyContext& c) { c.out(0, c.emit("Identity", {c.in(0)})); });

}  // namespace
}  // namespace ortmodule

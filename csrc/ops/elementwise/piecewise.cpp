// Piecewise activations: Relu, LeakyRelu, Elu, HardSigmoid, HardSwish, HardTanh, Clip, and their gradients.
//
// HardTanh exists beside Clip because PyTorch's gradients differ on the bounds: hardtanh and relu6 pass nothing there,
// clamp passes dy.
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

// XGrad(dy, x or y) -> dx
void unary_grad(OpRecord& r) {
  r.input("dY").input("saved").output("dX").infer(infer_same).traits(kElementwise).not_differentiable();
}

// Bodies of the gradients: dy, a multiple of it, or nothing, by where the saved tensor lies.
void relu_grad_body(BodyContext& c) {
  BodyFormula f(c);
  c.out(0, f.keep(f.greater(c.in(1), 0), c.in(0)));
}
void leaky_relu_grad_body(BodyContext& c) {
  BodyFormula f(c);
  c.out(0, f.where(f.greater(c.in(1), 0), c.in(0), f.mul(c.in(0), c.node().get_float("alpha", 0.01))));
}
void elu_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* below = f.mul(f.unary("Exp", c.in(1)), c.node().get_float("alpha", 1));
  c.out(0, f.where(f.greater(c.in(1), 0), c.in(0), f.mul(c.in(0), below)));
}
void hard_sigmoid_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* inside = f.both(f.greater(c.in(1), 0), f.less(c.in(1), 1));
  c.out(0, f.keep(inside, f.mul(c.in(0), c.node().get_float("alpha", 0.2))));
}
void hard_swish_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* between = f.mul(c.in(0), f.add(f.mul(c.in(1), 1.0 / 3), 0.5));
  c.out(0, f.keep(f.greater(c.in(1), -3), f.where(f.less(c.in(1), 3), between, c.in(0))));
}
void hard_tanh_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* inside =
      f.both(f.greater(c.in(1), c.node().get_float("min_val", -1)), f.less(c.in(1), c.node().get_float("max_val", 1)));
  c.out(0, f.keep(inside, c.in(0)));
}
void clip_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* dx = c.in(0);
  if (c.in(2)) dx = f.keep(c.emit("GreaterOrEqual", {c.in(1), c.in(2)}), dx);
  if (c.in(3)) dx = f.keep(c.emit("LessOrEqual", {c.in(1), c.in(3)}), dx);
  c.out(0, dx == c.in(0) ? c.emit("Identity", {dx}) : dx);
}

ORTMODULE_OP("", Relu, 1)
    .apply(unary)
    .traits(kCheap)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::ReluGrad", {c.GO(0), c.O(0)})); })
    .fuses(instruction<Opcode::kRelu>);
ORTMODULE_OP("ai.ortmodule", ReluGrad, 1)
    .apply(unary_grad)
    .traits(kCheap)
    .body(relu_grad_body)
    // A NaN passes dy, as ATen's threshold does.
    .fuses([](FusionContext& c) {
      const int stops = c.emit(Opcode::kLessEqual, c.in(1), c.number(0));
      c.out(0, c.emit(Opcode::kWhere, stops, c.number(0), c.in(0)));
      return true;
    });

ORTMODULE_OP("", LeakyRelu, 1)
    .apply(unary)
    .traits(kCheap)
    .attr("alpha", AttrKind::kFloat)
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::LeakyReluGrad", {c.GO(0), c.I(0)}, {{"alpha", c.node().get_float("alpha", 0.01)}}));
    });
ORTMODULE_OP("ai.ortmodule", LeakyReluGrad, 1)
    .apply(unary_grad)
    .traits(kCheap)
    .attr("alpha", AttrKind::kFloat)
    .body(leaky_relu_grad_body);

ORTMODULE_OP("", Elu, 1).apply(unary).attr("alpha", AttrKind::kFloat).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::EluGrad", {c.GO(0), c.I(0)}, {{"alpha", c.node().get_float("alpha", 1)}}));
});
ORTMODULE_OP("ai.ortmodule", EluGrad, 1).apply(unary_grad).attr("alpha", AttrKind::kFloat).body(elu_grad_body);

// clamp(alpha x + beta, 0, 1)
ORTMODULE_OP("", HardSigmoid, 1)
    .apply(unary)
    .traits(kCheap)
    .attr("alpha", AttrKind::kFloat)
    .attr("beta", AttrKind::kFloat)
    .grad({"X"}, [](GradContext& c) {
      c.GI(0,
           c.emit("ai.ortmodule::HardSigmoidGrad", {c.GO(0), c.O(0)}, {{"alpha", c.node().get_float("alpha", 0.2)}}));
    });
ORTMODULE_OP("ai.ortmodule", HardSigmoidGrad, 1)
    .apply(unary_grad)
    .traits(kCheap)
    .attr("alpha", AttrKind::kFloat)
    .body(hard_sigmoid_grad_body);

ORTMODULE_OP("", HardSwish, 14).apply(unary).traits(kCheap).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::HardSwishGrad", {c.GO(0), c.I(0)}));
});
ORTMODULE_OP("ai.ortmodule", HardSwishGrad, 1).apply(unary_grad).traits(kCheap).body(hard_swish_grad_body);

Attributes bounds(const Node& node) {
  return {{"min_val", node.get_float("min_val", -1)}, {"max_val", node.get_float("max_val", 1)}};
}

ORTMODULE_OP("ai.ortmodule", HardTanh, 1)
    .apply(unary)
    .traits(kCheap)
    .attr("min_val", AttrKind::kFloat)
    .attr("max_val", AttrKind::kFloat)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::HardTanhGrad", {c.GO(0), c.I(0)}, bounds(c.node()))); })
    .body([](BodyContext& c) {
      c.out(0, c.emit("Clip", {c.in(0), c.scalar(c.node().get_float("min_val", -1), c.in(0)),
                               c.scalar(c.node().get_float("max_val", 1), c.in(0))}));
    });
ORTMODULE_OP("ai.ortmodule", HardTanhGrad, 1)
    .apply(unary_grad)
    .traits(kCheap)
    .attr("min_val", AttrKind::kFloat)
    .attr("max_val", AttrKind::kFloat)
    .body(hard_tanh_grad_body);

// The gradient of a bound: dy where it is the bound that was taken, summed.
NodeArg* clip_bound_grad(GradContext& c, size_t bound, const char* beyond) {
  NodeArg* taken = c.emit(beyond, {c.I(0), c.I(bound)});
  if (c.I(1) && c.I(2)) {
    // With min > max PyTorch returns max everywhere: min gets nothing, max everything.
    NodeArg* ordered = c.emit("Less", {c.I(1), c.I(2)});
    taken = bound == 1 ? c.emit("And", {taken, ordered}) : c.emit("Or", {taken, c.emit("Less", {c.I(2), c.I(1)})});
  }
  return c.reduce_to(c.emit("Where", {taken, c.GO(0), c.scalar(0, c.GO(0))}), c.I(bound));
}

// Bounds that the attribute lists do not name are those of float.
void upgrade_clip(UpgradeContext& c) {
  const auto low = c.take_float("min"), high = c.take_float("max");
  c.drop("consumed_inputs");
  c.rewrite({c.I(0), low ? c.scalar(*low, c.dtype(0)) : nullptr, high ? c.scalar(*high, c.dtype(0)) : nullptr});
}

ORTMODULE_OP("", Clip, 11)
    .older(1, 10, upgrade_clip)
    .input("input")
    .optional_input("min")
    .optional_input("max")
    .output("output")
    .infer(infer_same)
    .traits(kElementwise | kCheap)
    .grad({"input", "min", "max"},
          [](GradContext& c) {
            if (c.needs(0)) c.GI(0, c.emit("ai.ortmodule::ClipGrad", {c.GO(0), c.I(0), c.I(1), c.I(2)}));
            if (c.needs(1)) c.GI(1, clip_bound_grad(c, 1, "Less"));
            if (c.needs(2)) c.GI(2, clip_bound_grad(c, 2, "Greater"));
          })
    .fuses([](FusionContext& c) {
      int result = c.in(0);
      if (c.has(1)) result = c.emit(Opcode::kMax, result, c.in(1));
      if (c.has(2)) result = c.emit(Opcode::kMin, result, c.in(2));
      c.out(0, result);
      return c.has(1) || c.has(2);
    });
ORTMODULE_OP("ai.ortmodule", ClipGrad, 1)
    .input("dY")
    .input("X")
    .optional_input("min")
    .optional_input("max")
    .output("dX")
    .infer(infer_same)
    .traits(kElementwise | kCheap)
    .not_differentiable()
    .body(clip_grad_body);

}  // namespace
}  // namespace ortmodule

// Trigonometric and hyperbolic functions beside Sin, Cos and Tanh: Tan, Sinh, Cosh and the six inverses.
//
// Gradients are compositions of elementwise operators, as eager's are: fusion joins them.
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

// sign x^2 + offset
NodeArg* square_plus(GradContext& c, NodeArg* x, double sign, double offset) {
  NodeArg* square = c.emit("Mul", {x, x});
  if (sign < 0) return c.emit("Sub", {c.scalar(offset, x), square});
  return c.emit("Add", {square, c.scalar(offset, x)});
}

// dy / sqrt(sign x^2 + offset)
NodeArg* over_root(GradContext& c, double sign, double offset) {
  return c.emit("Mul", {c.GO(0), c.emit("ai.ortmodule::Rsqrt", {square_plus(c, c.I(0), sign, offset)})});
}

ORTMODULE_OP("", Tan, 7).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.GO(0), square_plus(c, c.O(0), 1, 1)}));
});

ORTMODULE_OP("", Asin, 7).apply(unary).grad({"X"}, [](GradContext& c) { c.GI(0, over_root(c, -1, 1)); });

ORTMODULE_OP("", Acos, 7).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Neg", {over_root(c, -1, 1)}));
});

ORTMODULE_OP("", Atan, 7).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Div", {c.GO(0), square_plus(c, c.I(0), 1, 1)}));
});

ORTMODULE_OP("", Sinh, 9).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Cosh", {c.I(0)})}));
});

ORTMODULE_OP("", Cosh, 9).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Sinh", {c.I(0)})}));
});

ORTMODULE_OP("", Asinh, 9).apply(unary).grad({"X"}, [](GradContext& c) { c.GI(0, over_root(c, 1, 1)); });

ORTMODULE_OP("", Acosh, 9).apply(unary).grad({"X"}, [](GradContext& c) { c.GI(0, over_root(c, 1, -1)); });

ORTMODULE_OP("", Atanh, 9).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Div", {c.GO(0), square_plus(c, c.I(0), -1, 1)}));
});

}  // namespace
}  // namespace ortmodule

// Smooth activations: Gelu, Silu, QuickGelu, Mish, Tanh, Sigmoid, Softplus, with one gradient operator each, because
// ATen has a backward kernel that reads memory once. Tanh and Sigmoid save their output, the others their input.
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

// XGrad(dy, x or y) -> dx
void unary_grad(OpRecord& r) {
  r.input("dY").input("saved").output("dX").infer(infer_same).traits(kElementwise).not_differentiable();
}

Attributes copied(const Node& node, const char* name) {
  const AttributeValue* value = node.find_attribute(name);
  return value ? Attributes{{name, *value}} : Attributes{};
}

ORTMODULE_OP("", Gelu, 20).apply(unary).attr("approximate", AttrKind::kString).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::GeluGrad", {c.GO(0), c.I(0)}, copied(c.node(), "approximate")));
});
ORTMODULE_OP("ai.ortmodule", GeluGrad, 1).apply(unary_grad).attr("approximate", AttrKind::kString);

ORTMODULE_OP("ai.ortmodule", Silu, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::SiluGrad", {c.GO(0), c.I(0)})); })
    .body([](BodyContext& c) { c.out(0, c.emit("Mul", {c.in(0), c.emit("Sigmoid", {c.in(0)})})); });
ORTMODULE_OP("ai.ortmodule", SiluGrad, 1).apply(unary_grad);

// x sigmoid(alpha x); alpha is 1.702 unless given.
ORTMODULE_OP("com.microsoft", QuickGelu, 1)
    .apply(unary)
    .attr("alpha", AttrKind::kFloat)
    .grad({"X"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::QuickGeluGrad", {c.GO(0), c.I(0)}, copied(c.node(), "alpha")));
          })
    .body([](BodyContext& c) {
      NodeArg* scaled = c.emit("Mul", {c.in(0), c.scalar(c.node().get_float("alpha", 1.702), c.in(0))});
      c.out(0, c.emit("Mul", {c.in(0), c.emit("Sigmoid", {scaled})}));
    });
ORTMODULE_OP("ai.ortmodule", QuickGeluGrad, 1).apply(unary_grad).attr("alpha", AttrKind::kFloat);

ORTMODULE_OP("", Mish, 18).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::MishGrad", {c.GO(0), c.I(0)}));
});
ORTMODULE_OP("ai.ortmodule", MishGrad, 1).apply(unary_grad);

ORTMODULE_OP("", Tanh, 1).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::TanhGrad", {c.GO(0), c.O(0)}));
});
ORTMODULE_OP("ai.ortmodule", TanhGrad, 1).apply(unary_grad);

ORTMODULE_OP("", Sigmoid, 1).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::SigmoidGrad", {c.GO(0), c.O(0)}));
});
ORTMODULE_OP("ai.ortmodule", SigmoidGrad, 1).apply(unary_grad);

// log(1 + exp(x)); x itself above 20, as in PyTorch.
ORTMODULE_OP("", Softplus, 1).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::SoftplusGrad", {c.GO(0), c.I(0)}));
});
ORTMODULE_OP("ai.ortmodule", SoftplusGrad, 1).apply(unary_grad);

}  // namespace
}  // namespace ortmodule

// Smooth activations: Gelu, Silu, QuickGelu, Mish, Tanh, Sigmoid, Softplus, with one gradient operator each, because
// ATen has a backward kernel that reads memory once. Tanh and Sigmoid save their output, the others their input.
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

// XGrad(dy, x or y) -> dx
void unary_grad(OpRecord& r) {
  r.input("dY").input("saved").output("dX").infer(infer_same).traits(kElementwise).not_differentiable();
}

// A body that is dy times a function of the saved tensor.
template <NodeArg* (*factor)(BodyFormula&, NodeArg*)>
void times_factor(BodyContext& c) {
  BodyFormula f(c);
  c.out(0, f.mul(c.in(0), factor(f, c.in(1))));
}

constexpr double kRootOf2OverPi = 0.7978845608028654, kTanhCubic = 0.044715;

// Phi(x) + x phi(x), or the derivative of x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
NodeArg* gelu_factor(BodyFormula& f, NodeArg* x) {
  if (f.c.node().get_string("approximate", "none") == "tanh") {
    NodeArg* square = f.mul(x, x);
    NodeArg* u = f.mul(f.mul(x, f.add(f.mul(square, kTanhCubic), 1)), kRootOf2OverPi);
    NodeArg* t = f.unary("Tanh", u);
    NodeArg* du = f.mul(f.add(f.mul(square, 3 * kTanhCubic), 1), kRootOf2OverPi);
    return f.mul(f.add(f.add(t, 1), f.mul(x, f.mul(f.from(1, f.mul(t, t)), du))), 0.5);
  }
  NodeArg* cdf = f.mul(f.add(f.unary("Erf", f.mul(x, 0.7071067811865476)), 1), 0.5);
  NodeArg* pdf = f.mul(f.unary("Exp", f.mul(f.mul(x, x), -0.5)), 0.3989422804014327);
  return f.add(cdf, f.mul(x, pdf));
}

// The derivative of x sigmoid(alpha x).
NodeArg* scaled_sigmoid_factor(BodyFormula& f, NodeArg* x, double alpha) {
  NodeArg* s = f.sigmoid(f.mul(x, alpha));
  return f.mul(s, f.add(f.mul(f.mul(x, alpha), f.from(1, s)), 1));
}
NodeArg* silu_factor(BodyFormula& f, NodeArg* x) { return scaled_sigmoid_factor(f, x, 1); }
NodeArg* quick_gelu_factor(BodyFormula& f, NodeArg* x) {
  return scaled_sigmoid_factor(f, x, f.c.node().get_float("alpha", 1.702));
}
// With t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x).
NodeArg* mish_factor(BodyFormula& f, NodeArg* x) {
  NodeArg* t = f.unary("Tanh", f.unary("Softplus", x));
  return f.add(t, f.mul(x, f.mul(f.from(1, f.mul(t, t)), f.sigmoid(x))));
}
NodeArg* tanh_factor(BodyFormula& f, NodeArg* y) { return f.from(1, f.mul(y, y)); }
NodeArg* sigmoid_factor(BodyFormula& f, NodeArg* y) { return f.mul(y, f.from(1, y)); }
NodeArg* softplus_factor(BodyFormula& f, NodeArg* x) {
  return f.where(f.greater(x, 20), f.c.scalar(1, x), f.sigmoid(x));
}

Attributes copied(const Node& node, const char* name) {
  const AttributeValue* value = node.find_attribute(name);
  return value ? Attributes{{name, *value}} : Attributes{};
}

ORTMODULE_OP("", Gelu, 20)
    .apply(unary)
    .attr("approximate", AttrKind::kString)
    .grad({"X"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::GeluGrad", {c.GO(0), c.I(0)}, copied(c.node(), "approximate")));
          })
    // With the error function ATen's own kernels for the CPU are faster than a program (512 x 768 floats and a sum:
    // 0.45 ms against 0.59, the gradient 0.65 against 0.95), with tanh they are slower.
    .fuses([](FusionContext& c) {
      if (c.node().get_string("approximate", "none") == "tanh") return instruction<Opcode::kGeluTanh>(c);
      return c.whole_rows() && instruction<Opcode::kGelu>(c);
    });
ORTMODULE_OP("ai.ortmodule", GeluGrad, 1)
    .apply(unary_grad)
    .attr("approximate", AttrKind::kString)
    .body(times_factor<gelu_factor>)
    .fuses([](FusionContext& c) {
      if (c.node().get_string("approximate", "none") == "tanh") return instruction<Opcode::kGeluTanhGrad>(c);
      return c.whole_rows() && instruction<Opcode::kGeluGrad>(c);
    });

ORTMODULE_OP("ai.ortmodule", Silu, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::SiluGrad", {c.GO(0), c.I(0)})); })
    .body([](BodyContext& c) { c.out(0, c.emit("Mul", {c.in(0), c.emit("Sigmoid", {c.in(0)})})); })
    .fuses(instruction<Opcode::kSilu>);
ORTMODULE_OP("ai.ortmodule", SiluGrad, 1)
    .apply(unary_grad)
    .body(times_factor<silu_factor>)
    .fuses(instruction<Opcode::kSiluGrad>);

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
    })
    .fuses([](FusionContext& c) {
      const int scaled = c.emit(Opcode::kMul, c.in(0), c.number(c.node().get_float("alpha", 1.702)));
      c.out(0, c.emit(Opcode::kMul, c.in(0), c.emit(Opcode::kSigmoid, scaled)));
      return true;
    });
ORTMODULE_OP("ai.ortmodule", QuickGeluGrad, 1)
    .apply(unary_grad)
    .attr("alpha", AttrKind::kFloat)
    .body(times_factor<quick_gelu_factor>)
    // With silu's derivative s': d/dx x sigmoid(alpha x) = s'(alpha x).
    .fuses([](FusionContext& c) {
      const int scaled = c.emit(Opcode::kMul, c.in(1), c.number(c.node().get_float("alpha", 1.702)));
      c.out(0, c.emit(Opcode::kSiluGrad, c.in(0), scaled));
      return true;
    });

ORTMODULE_OP("", Mish, 18).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::MishGrad", {c.GO(0), c.I(0)}));
});
ORTMODULE_OP("ai.ortmodule", MishGrad, 1).apply(unary_grad).body(times_factor<mish_factor>);

ORTMODULE_OP("", Tanh, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::TanhGrad", {c.GO(0), c.O(0)})); })
    .fuses(instruction<Opcode::kTanh>);
ORTMODULE_OP("ai.ortmodule", TanhGrad, 1)
    .apply(unary_grad)
    .body(times_factor<tanh_factor>)
    .fuses(instruction<Opcode::kTanhGrad>);

ORTMODULE_OP("", Sigmoid, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::SigmoidGrad", {c.GO(0), c.O(0)})); })
    .fuses(instruction<Opcode::kSigmoid>);
ORTMODULE_OP("ai.ortmodule", SigmoidGrad, 1)
    .apply(unary_grad)
    .body(times_factor<sigmoid_factor>)
    .fuses(instruction<Opcode::kSigmoidGrad>);

// log(1 + exp(x)); x itself above 20, as in PyTorch.
ORTMODULE_OP("", Softplus, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::SoftplusGrad", {c.GO(0), c.I(0)})); })
    // max(x, 0) + log(1 + e) with e = exp(-|x|). The rounding of u = 1 + e is undone by the factor e / (u - 1).
    .fuses([](FusionContext& c) {
      const int e = c.emit(Opcode::kExp, c.emit(Opcode::kNeg, c.emit(Opcode::kAbs, c.in(0))));
      const int u = c.emit(Opcode::kAdd, e, c.number(1)), kept = c.emit(Opcode::kSub, u, c.number(1));
      const int logarithm = c.emit(Opcode::kMul, c.emit(Opcode::kLog, u), c.emit(Opcode::kDiv, e, kept));
      const int beyond = c.emit(Opcode::kWhere, c.emit(Opcode::kEqual, u, c.number(1)), e, logarithm);
      c.out(0, c.emit(Opcode::kAdd, c.emit(Opcode::kMax, c.in(0), c.number(0)), beyond));
      return true;
    });
ORTMODULE_OP("ai.ortmodule", SoftplusGrad, 1)
    .apply(unary_grad)
    .body(times_factor<softplus_factor>)
    .fuses([](FusionContext& c) {
      c.out(0, c.emit(Opcode::kMul, c.in(0), c.emit(Opcode::kSigmoid, c.in(1))));
      return true;
    });

}  // namespace
}  // namespace ortmodule

// Unary mathematics: Exp, Exp2, Expm1, Log, Log1p, Log2, Log10, Sqrt, Rsqrt, Reciprocal, Neg, Abs, Sign, Cos, Sin, Erf
// and rounding.
//
// Gradients are compositions of elementwise operators, as eager's are: fusion joins them. Exp, Sqrt, Rsqrt and
// Reciprocal differentiate through their output. Rounding and Sign have the gradient zero, not none, as in PyTorch.
#include <cmath>

#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

void zero_gradient(OpRecord& r) {
  r.grad({"X"}, [](GradContext& c) { c.GI(0, c.zeros_like(c.GO(0))); });
}

ORTMODULE_OP("", Exp, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.O(0)})); })
    .fuses(instruction<Opcode::kExp>);

ORTMODULE_OP("", Log, 1)
    .apply(unary)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("Div", {c.GO(0), c.I(0)})); })
    .fuses(instruction<Opcode::kLog>);

ORTMODULE_OP("", Sqrt, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("Div", {c.GO(0), c.emit("Mul", {c.O(0), c.scalar(2, c.O(0))})})); })
    .fuses(instruction<Opcode::kSqrt>);

// dy (y + 1)
ORTMODULE_OP("ai.ortmodule", Expm1, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Add", {c.O(0), c.scalar(1, c.O(0))})})); })
    .body([](BodyContext& c) {
      NodeArg* y = c.emit("Exp", {c.in(0)});
      c.out(0, c.emit("Sub", {y, c.scalar(1, y)}));
    });

// dy / (1 + x)
ORTMODULE_OP("ai.ortmodule", Log1p, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("Div", {c.GO(0), c.emit("Add", {c.I(0), c.scalar(1, c.I(0))})})); })
    .body([](BodyContext& c) { c.out(0, c.emit("Log", {c.emit("Add", {c.in(0), c.scalar(1, c.in(0))})})); });

// dy / (x ln base)
void logarithm(OpRecord& r, double base) {
  r.grad({"X"}, [base](GradContext& c) {
     NodeArg* scaled = c.emit("Mul", {c.I(0), c.scalar(std::log(base), c.I(0))});
     c.GI(0, c.emit("Div", {c.GO(0), scaled}));
   }).body([base](BodyContext& c) {
    NodeArg* natural = c.emit("Log", {c.in(0)});
    c.out(0, c.emit("Div", {natural, c.scalar(std::log(base), natural)}));
  });
}

ORTMODULE_OP("ai.ortmodule", Log2, 1).apply(unary).apply([](OpRecord& r) { logarithm(r, 2); });
ORTMODULE_OP("ai.ortmodule", Log10, 1).apply(unary).apply([](OpRecord& r) { logarithm(r, 10); });

// dy y ln 2
ORTMODULE_OP("ai.ortmodule", Exp2, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Mul", {c.O(0), c.scalar(M_LN2, c.O(0))})})); })
    .body([](BodyContext& c) { c.out(0, c.emit("Exp", {c.emit("Mul", {c.in(0), c.scalar(M_LN2, c.in(0))})})); });

// -dy y^3 / 2
ORTMODULE_OP("ai.ortmodule", Rsqrt, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) {
            NodeArg* cube = c.emit("Pow", {c.O(0), c.scalar(3, c.O(0))});
            c.GI(0, c.emit("Mul", {c.emit("Mul", {c.GO(0), c.scalar(-0.5, c.GO(0))}), cube}));
          })
    .body([](BodyContext& c) { c.out(0, c.emit("Reciprocal", {c.emit("Sqrt", {c.in(0)})})); })
    .fuses(instruction<Opcode::kRsqrt>);

ORTMODULE_OP("", Reciprocal, 1)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Neg", {c.emit("Mul", {c.O(0), c.O(0)})})})); })
    .fuses(instruction<Opcode::kReciprocal>);

ORTMODULE_OP("", Neg, 1)
    .apply(unary)
    .traits(kCheap)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("Neg", {c.GO(0)})); })
    .fuses(instruction<Opcode::kNeg>);

ORTMODULE_OP("", Abs, 1)
    .apply(unary)
    .traits(kCheap)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Sign", {c.I(0)})})); })
    .fuses(instruction<Opcode::kAbs>);

ORTMODULE_OP("", Sign, 9)
    .apply(unary)
    .traits(kCheap)
    .apply(zero_gradient)
    // Of NaN it is 0, as ATen's.
    .fuses([](FusionContext& c) {
      const int below = c.emit(Opcode::kWhere, c.emit(Opcode::kLess, c.in(0), c.number(0)), c.number(-1), c.number(0));
      c.out(0, c.emit(Opcode::kWhere, c.emit(Opcode::kGreater, c.in(0), c.number(0)), c.number(1), below));
      return true;
    });

ORTMODULE_OP("", Cos, 7).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Neg", {c.emit("Sin", {c.I(0)})})}));
});

ORTMODULE_OP("", Sin, 7).apply(unary).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Cos", {c.I(0)})}));
});

// dy exp(-x^2) 2 / sqrt(pi)
ORTMODULE_OP("", Erf, 9)
    .apply(unary)
    .grad({"X"},
          [](GradContext& c) {
            NodeArg* bell = c.emit("Exp", {c.emit("Neg", {c.emit("Mul", {c.I(0), c.I(0)})})});
            c.GI(0, c.emit("Mul", {c.GO(0), c.emit("Mul", {bell, c.scalar(2 / std::sqrt(M_PI), bell)})}));
          })
    .fuses(instruction<Opcode::kErf>);

ORTMODULE_OP("", Floor, 1).apply(unary).traits(kCheap).apply(zero_gradient);
ORTMODULE_OP("", Ceil, 1).apply(unary).traits(kCheap).apply(zero_gradient);
ORTMODULE_OP("", Round, 11).apply(unary).traits(kCheap).apply(zero_gradient);

}  // namespace
}  // namespace ortmodule

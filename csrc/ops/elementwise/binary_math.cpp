// Mathematics of two operands, with broadcasting: Atan2, Hypot, LogAddExp, XLogY.
//
// They are operators because compositions lose what ATen's kernels keep: quadrants and signed zeros, squares that
// overflow, infinities that are equal. Gradients are compositions, PyTorch's formulas: fusion joins them.
#include <cmath>

#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void binary(OpRecord& r) { r.input("A").input("B").output("C").infer(infer_broadcast).traits(kElementwise); }

// The angle of the point (B, A): dA = dy B / (A^2 + B^2), dB = -dy A / (A^2 + B^2), zero at the origin.
ORTMODULE_OP("ai.ortmodule", Atan2, 1)
    .apply(binary)
    .grad({"A", "B"},
          [](GradContext& c) {
            NodeArg *a = c.I(0), *b = c.I(1);
            NodeArg* squares = c.emit("Add", {c.emit("Mul", {a, a}), c.emit("Mul", {b, b})});
            NodeArg* zero = c.scalar(0, squares);
            NodeArg* over = c.emit("Where", {c.emit("Equal", {squares, zero}), zero, c.emit("Reciprocal", {squares})});
            NodeArg* share = c.emit("Mul", {c.GO(0), over});
            if (c.needs(0)) c.GI(0, c.reduce_to(c.emit("Mul", {share, b}), a));
            if (c.needs(1)) c.GI(1, c.reduce_to(c.emit("Neg", {c.emit("Mul", {share, a})}), b));
          })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg *a = c.in(0), *b = c.in(1);
      NodeArg *zero = c.scalar(0, a), *below = f.less(a, 0);
      NodeArg* quotient = f.div(a, f.where(c.emit("Equal", {b, zero}), c.scalar(1, b), b));
      NodeArg* half_turn = f.where(below, c.scalar(-M_PI, a), c.scalar(M_PI, a));
      NodeArg* angle = f.add(f.unary("Atan", quotient), f.keep(f.less(b, 0), half_turn));
      NodeArg* upright = f.where(below, c.scalar(-M_PI / 2, a), f.keep(f.greater(a, 0), c.scalar(M_PI / 2, a)));
      c.out(0, f.where(c.emit("Equal", {b, zero}), upright, angle));
    });

// sqrt(A^2 + B^2): dA = dy A / C
ORTMODULE_OP("ai.ortmodule", Hypot, 1)
    .apply(binary)
    .grad({"A", "B"},
          [](GradContext& c) {
            for (size_t i = 0; i < 2; ++i)
              if (c.needs(i)) c.GI(i, c.reduce_to(c.emit("Mul", {c.GO(0), c.emit("Div", {c.I(i), c.O(0)})}), c.I(i)));
          })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      c.out(0, f.unary("Sqrt", f.add(f.mul(c.in(0), c.in(0)), f.mul(c.in(1), c.in(1)))));
    });

// log(exp(A) + exp(B)): dA = dy / (1 + exp(B - A))
ORTMODULE_OP("ai.ortmodule", LogAddExp, 1)
    .apply(binary)
    .grad({"A", "B"},
          [](GradContext& c) {
            for (size_t i = 0; i < 2; ++i) {
              if (!c.needs(i)) continue;
              NodeArg* odds = c.emit("Exp", {c.emit("Sub", {c.I(1 - i), c.I(i)})});
              NodeArg* dx = c.emit("Div", {c.GO(0), c.emit("Add", {odds, c.scalar(1, odds)})});
              c.GI(i, c.reduce_to(dx, c.I(i)));
            }
          })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg *a = c.in(0), *b = c.in(1);
      NodeArg* apart = f.where(c.emit("Equal", {a, b}), c.scalar(0, a), f.unary("Abs", f.sub(a, b)));
      c.out(0, f.add(c.emit("Max", {a, b}), f.unary("Softplus", f.unary("Neg", apart))));
    });

// A log(B), zero where A is 0 and B is a number: dA = dy log(B), zero where A = 0 and B <= 0; dB = dy A / B.
ORTMODULE_OP("ai.ortmodule", XLogY, 1)
    .apply(binary)
    .grad({"A", "B"},
          [](GradContext& c) {
            NodeArg *dy = c.GO(0), *a = c.I(0), *b = c.I(1);
            if (c.needs(0)) {
              NodeArg* flat =
                  c.emit("And", {c.emit("Equal", {a, c.scalar(0, a)}), c.emit("LessOrEqual", {b, c.scalar(0, b)})});
              NodeArg* da = c.emit("ai.ortmodule::XLogY", {dy, b});
              c.GI(0, c.reduce_to(c.emit("Where", {flat, c.scalar(0, da), da}), a));
            }
            if (c.needs(1)) c.GI(1, c.reduce_to(c.emit("Div", {c.emit("Mul", {dy, a}), b}), b));
          })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg *a = c.in(0), *b = c.in(1);
      NodeArg* number = f.unary("Not", c.emit("IsNaN", {b}));
      NodeArg* nothing = f.both(c.emit("Equal", {a, c.scalar(0, a)}), number);
      NodeArg* product = f.mul(a, f.unary("Log", b));
      c.out(0, f.where(nothing, c.scalar(0, product), product));
    });

}  // namespace
}  // namespace ortmodule

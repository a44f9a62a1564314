// Binary arithmetic with broadcasting: Add, Sub, Mul, Div, Pow, Mod, FloorDiv.
//
// A gradient is computed in the broadcast shape and summed back by reduce_to. Where an operand broadcasts by rows of
// ones only, that sum is the one extra pass, as in eager.
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void binary(OpRecord& r) { r.input("A").input("B").output("C").infer(infer_broadcast).traits(kElementwise | kCheap); }

// The single element of a constant, or null when `value` is none.
std::optional<double> constant_number(const NodeArg* value) {
  if (!value || !value->constant() || value->constant()->elements() != 1) return std::nullopt;
  return value->constant()->to_doubles().at(0);
}

ORTMODULE_OP("", Add, 7)
    .apply(binary)
    .older(1, 6, upgrade_axis_broadcast)
    .grad({"A", "B"},
          [](GradContext& c) {
            for (size_t i = 0; i < 2; ++i)
              if (c.needs(i)) c.GI(i, c.reduce_to(c.GO(0), c.I(i)));
          })
    .fuses(instruction<Opcode::kAdd>);

ORTMODULE_OP("", Sub, 7)
    .apply(binary)
    .older(1, 6, upgrade_axis_broadcast)
    .grad({"A", "B"},
          [](GradContext& c) {
            if (c.needs(0)) c.GI(0, c.reduce_to(c.GO(0), c.I(0)));
            // The sum first: it may be much smaller than dy.
            if (c.needs(1)) c.GI(1, c.emit("Neg", {c.reduce_to(c.GO(0), c.I(1))}));
          })
    .fuses(instruction<Opcode::kSub>);

ORTMODULE_OP("", Mul, 7)
    .apply(binary)
    .older(1, 6, upgrade_axis_broadcast)
    .grad({"A", "B"},
          [](GradContext& c) {
            for (size_t i = 0; i < 2; ++i)
              if (c.needs(i)) c.GI(i, c.reduce_to(c.emit("Mul", {c.GO(0), c.I(1 - i)}), c.I(i)));
          })
    .fuses(instruction<Opcode::kMul>);

// dA = dC / B, dB = -dC (C / B): the output stands for A / B. Of dA C a zero would have no number where dA overflows.
ORTMODULE_OP("", Div, 7)
    .apply(binary)
    .older(1, 6, upgrade_axis_broadcast)
    .grad({"A", "B"},
          [](GradContext& c) {
            if (c.needs(0)) c.GI(0, c.reduce_to(c.emit("Div", {c.GO(0), c.I(1)}), c.I(0)));
            if (!c.needs(1)) return;
            NodeArg* slope = c.emit("Div", {c.O(0), c.I(1)});
            c.GI(1, c.emit("Neg", {c.reduce_to(c.emit("Mul", {c.GO(0), slope}), c.I(1))}));
          })
    .fuses(instruction<Opcode::kDiv>);

// dX = dZ Y X^(Y-1), zero where Y is 0 (X = 0 would give NaN).
NodeArg* pow_base_grad(GradContext& c) {
  NodeArg *dz = c.GO(0), *x = c.I(0);
  if (const auto exponent = constant_number(c.I(1))) {
    if (*exponent == 0) return c.zeros_like(x);
    if (*exponent == 1) return c.reduce_to(dz, x);
    NodeArg* power = *exponent == 2 ? x : c.emit("Pow", {x, c.scalar(*exponent - 1, x)});
    return c.reduce_to(c.emit("Mul", {dz, c.emit("Mul", {power, c.scalar(*exponent, x)})}), x);
  }
  NodeArg* y = c.cast(c.I(1), x->type().dtype);
  NodeArg* slope = c.emit("Mul", {y, c.emit("Pow", {x, c.emit("Sub", {y, c.scalar(1, y)})})});
  NodeArg* flat = c.emit("Equal", {y, c.scalar(0, y)});
  return c.reduce_to(c.emit("Where", {flat, c.scalar(0, dz), c.emit("Mul", {dz, slope})}), x);
}

// dY = dZ Z log X, zero where X = 0 and Y >= 0 (the logarithm would give NaN).
NodeArg* pow_exponent_grad(GradContext& c) {
  NodeArg *x = c.I(0), *y = c.cast(c.I(1), x->type().dtype);
  NodeArg* slope = c.emit("Mul", {c.GO(0), c.emit("Mul", {c.O(0), c.emit("Log", {x})})});
  NodeArg* flat = c.emit("And", {c.emit("Equal", {x, c.scalar(0, x)}), c.emit("GreaterOrEqual", {y, c.scalar(0, y)})});
  NodeArg* dy = c.emit("Where", {flat, c.scalar(0, slope), slope});
  return c.cast(c.reduce_to(dy, c.I(1)), c.I(1)->type().dtype);
}

// The exponent may have a type of its own; the result has the base's.
ORTMODULE_OP("", Pow, 7)
    .older(1, 6, upgrade_axis_broadcast)
    .input("X")
    .input("Y")
    .output("Z")
    .traits(kElementwise)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.broadcast(c.shape(0), c.shape(1))); })
    .grad({"X", "Y"},
          [](GradContext& c) {
            if (c.needs(0)) c.GI(0, pow_base_grad(c));
            if (c.needs(1)) c.GI(1, pow_exponent_grad(c));
          })
    // The exponents that ATen computes without a power; others stay a node of their own.
    .fuses([](FusionContext& c) {
      const auto exponent = c.constant(1);
      if (!exponent) return false;
      const int x = c.in(0);
      const auto square = [&] { return c.emit(Opcode::kMul, x, x); };
      if (*exponent == 2)
        c.out(0, square());
      else if (*exponent == 3)
        c.out(0, c.emit(Opcode::kMul, square(), x));
      else if (*exponent == 0.5)
        c.out(0, c.emit(Opcode::kSqrt, x));
      else if (*exponent == -0.5)
        c.out(0, c.emit(Opcode::kRsqrt, x));
      else if (*exponent == -1)
        c.out(0, c.emit(Opcode::kReciprocal, x));
      else
        return false;
      return true;
    });

// fmod=0: the sign of the divisor (Python's %); fmod=1: the sign of the dividend (C's fmod).
ORTMODULE_OP("", Mod, 10).apply(binary).attr("fmod", AttrKind::kInt).grad({"A", "B"}, [](GradContext& c) {
  if (c.needs(0)) c.GI(0, c.reduce_to(c.GO(0), c.I(0)));
  if (!c.needs(1)) return;
  NodeArg* quotient = c.emit("Div", {c.I(0), c.I(1)});
  NodeArg* whole = c.node().get_int("fmod", 0)
                       ? c.emit("Mul", {c.emit("Sign", {quotient}), c.emit("Floor", {c.emit("Abs", {quotient})})})
                       : c.emit("Floor", {quotient});
  c.GI(1, c.emit("Neg", {c.reduce_to(c.emit("Mul", {c.GO(0), whole}), c.I(1))}));
});

// The quotient rounded down, for integers and floats; the gradient is zero, as torch's.
ORTMODULE_OP("ai.ortmodule", FloorDiv, 1)
    .apply(binary)
    .grad({"A", "B"},
          [](GradContext& c) {
            for (size_t i = 0; i < 2; ++i)
              if (c.needs(i)) c.GI(i, c.zeros_like(c.I(i)));
          })
    .body([](BodyContext& c) {
      NodeArg *a = c.in(0), *b = c.in(1);
      if (is_floating(a->type().dtype)) {
        c.out(0, c.emit("Floor", {c.emit("Div", {a, b})}));
        return;
      }
      // ONNX rounds an integer quotient towards zero, but Mod has the divisor's sign: a - a mod b divides exactly.
      c.out(0, c.emit("Div", {c.emit("Sub", {a, c.emit("Mod", {a, b})}), b}));
    });

}  // namespace
}  // namespace ortmodule

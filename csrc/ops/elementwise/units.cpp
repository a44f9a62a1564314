// Further activation units: Celu, Selu, Softsign, ThresholdedRelu, Shrink, PRelu, Swish, SwiGLU.
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void unary(OpRecord& r) { r.input("X").output("Y").infer(infer_same).traits(kElementwise); }

constexpr double kSeluAlpha = 1.67326319217681884765625, kSeluGamma = 1.05070102214813232421875;

// x <= 0 ? alpha * scale * (exp(input_scale * x) - 1) : scale * x is the family that Elu, Celu and Selu belong to.
void elu_gradient(GradContext& c, double alpha, double scale, double input_scale) {
  c.GI(0, c.emit("ai.ortmodule::ScaledEluGrad", {c.GO(0), c.I(0)},
                 {{"alpha", alpha}, {"scale", scale}, {"input_scale", input_scale}}));
}

ORTMODULE_OP("", Celu, 12).apply(unary).attr("alpha", AttrKind::kFloat).grad({"X"}, [](GradContext& c) {
  const double alpha = c.node().get_float("alpha", 1);
  elu_gradient(c, alpha, 1, 1 / alpha);
});

ORTMODULE_OP("", Selu, 1)
    .apply(unary)
    .attr("alpha", AttrKind::kFloat)
    .attr("gamma", AttrKind::kFloat)
    .grad({"X"}, [](GradContext& c) {
      elu_gradient(c, c.node().get_float("alpha", kSeluAlpha), c.node().get_float("gamma", kSeluGamma), 1);
    });

ORTMODULE_OP("ai.ortmodule", ScaledEluGrad, 1)
    .input("dY")
    .input("X")
    .output("dX")
    .attr("alpha", AttrKind::kFloat)
    .attr("scale", AttrKind::kFloat)
    .attr("input_scale", AttrKind::kFloat)
    .infer(infer_same)
    .traits(kElementwise)
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      const double alpha = c.node().get_float("alpha", 1), scale = c.node().get_float("scale", 1),
                   input_scale = c.node().get_float("input_scale", 1);
      NodeArg* below = f.mul(f.unary("Exp", f.mul(c.in(1), input_scale)), alpha * scale * input_scale);
      c.out(0, f.mul(c.in(0), f.where(f.greater(c.in(1), 0), c.scalar(scale, c.in(1)), below)));
    });

// x / (1 + |x|), with the derivative 1 / (1 + |x|)^2
ORTMODULE_OP("", Softsign, 1).apply(unary).grad({"X"}, [](GradContext& c) {
  NodeArg* one_more = c.emit("Add", {c.emit("Abs", {c.I(0)}), c.scalar(1, c.I(0))});
  c.GI(0, c.emit("Div", {c.GO(0), c.emit("Mul", {one_more, one_more})}));
});

// x where x > alpha, else zero
ORTMODULE_OP("", ThresholdedRelu, 10)
    .apply(unary)
    .traits(kCheap)
    .attr("alpha", AttrKind::kFloat)
    .grad({"X"}, [](GradContext& c) {
      // Not "Greater": the gradient passes where x is no number, as PyTorch's does.
      NodeArg* stops = c.emit("LessOrEqual", {c.I(0), c.scalar(c.node().get_float("alpha", 1), c.I(0))});
      c.GI(0, c.emit("Where", {stops, c.scalar(0, c.GO(0)), c.GO(0)}));
    });

// x + bias below -lambd, x - bias above lambd, zero between; any numeric type.
ORTMODULE_OP("", Shrink, 9)
    .apply(unary)
    .traits(kCheap)
    .attr("lambd", AttrKind::kFloat)
    .attr("bias", AttrKind::kFloat)
    .grad({"X"}, [](GradContext& c) {
      const double lambd = c.node().get_float("lambd", 0.5);
      NodeArg* below = c.emit("Less", {c.I(0), c.scalar(-lambd, c.I(0))});
      NodeArg* above = c.emit("Greater", {c.I(0), c.scalar(lambd, c.I(0))});
      c.GI(0, c.emit("Where", {c.emit("Or", {below, above}), c.GO(0), c.scalar(0, c.GO(0))}));
    });

// x where x > 0, else slope * x; slope broadcasts to x. At zero the gradient is slope * dy, as in PyTorch.
ORTMODULE_OP("", PRelu, 7)
    .older(1, 6, upgrade_channel_slope)
    .input("X")
    .input("slope")
    .output("Y")
    .traits(kElementwise | kCheap)
    .infer([](InferContext& c) {
      c.broadcast(c.shape(0), c.shape(1));
      c.same_as(0, 0);
    })
    .grad({"X", "slope"}, [](GradContext& c) {
      NodeArg* positive = c.emit("Greater", {c.I(0), c.scalar(0, c.I(0))});
      if (c.needs(0)) c.GI(0, c.emit("Where", {positive, c.GO(0), c.emit("Mul", {c.GO(0), c.I(1)})}));
      if (!c.needs(1)) return;
      NodeArg* slope = c.emit("Where", {positive, c.scalar(0, c.I(0)), c.emit("Mul", {c.GO(0), c.I(0)})});
      c.GI(1, c.reduce_to(slope, c.I(1)));
    });

// x sigmoid(alpha x): QuickGelu with another default.
ORTMODULE_OP("", Swish, 24).apply(unary).attr("alpha", AttrKind::kFloat).grad({"X"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::QuickGeluGrad", {c.GO(0), c.I(0)}, {{"alpha", c.node().get_float("alpha", 1)}}));
});

// A sigmoid(alpha A) B. Both must have one shape.
ORTMODULE_OP("", SwiGLU, 28)
    .input("A")
    .input("B")
    .output("Y")
    .attr("alpha", AttrKind::kFloat)
    .traits(kElementwise)
    .infer([](InferContext& c) {
      if (c.shape(0) && c.shape(1) && c.shape(0)->size() != c.shape(1)->size()) c.error("A and B differ in rank");
      c.broadcast(c.shape(0), c.shape(1));
      c.same_as(0, 0);
    })
    .grad({"A", "B"}, [](GradContext& c) {
      const double alpha = c.node().get_float("alpha", 1);
      if (c.needs(0)) {
        NodeArg* flow = c.emit("Mul", {c.GO(0), c.I(1)});
        c.GI(0, c.emit("ai.ortmodule::QuickGeluGrad", {flow, c.I(0)}, {{"alpha", alpha}}));
      }
      if (c.needs(1))
        c.GI(1, c.emit("Mul", {c.GO(0), c.emit("com.microsoft::QuickGelu", {c.I(0)}, {{"alpha", alpha}})}));
    });

}  // namespace
}  // namespace ortmodule

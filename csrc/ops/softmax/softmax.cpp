// Softmax and LogSoftmax over one axis. Both gradients read the output alone.
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_softmax(InferContext& c) {
  if (const Shape* x = c.shape(0); x && !x->empty()) c.axis(c.attr_int("axis", -1), x->size());
  c.same_as(0, 0);
}

void softmax_like(OpRecord& op) {
  op.input("input").output("output").attr("axis", AttrKind::kInt).infer(infer_softmax);
}

void softmax_grad_like(OpRecord& op) {
  op.input("dy").input("y").output("dx").attr("axis", AttrKind::kInt).infer(infer_same).not_differentiable();
}

}  // namespace

ORTMODULE_OP("", Softmax, 13)
    .apply(softmax_like)
    .older(1, 12, upgrade_flattened_axis)
    .grad({"input"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::SoftmaxGrad", {c.GO(0), c.O(0)}, {{"axis", c.node().get_int("axis", -1)}}));
          })
    .rows(along_axis<-1>);

ORTMODULE_OP("", LogSoftmax, 13)
    .apply(softmax_like)
    .older(1, 12, upgrade_flattened_axis)
    .grad({"input"},
          [](GradContext& c) {
            c.GI(0,
                 c.emit("ai.ortmodule::LogSoftmaxGrad", {c.GO(0), c.O(0)}, {{"axis", c.node().get_int("axis", -1)}}));
          })
    .rows(along_axis<-1>);

// dx = y * (dy - sum(dy * y))
ORTMODULE_OP("ai.ortmodule", SoftmaxGrad, 1).apply(softmax_grad_like).body([](BodyContext& c) {
  BodyFormula f(c);
  NodeArg* sum = f.sum(f.mul(c.in(0), c.in(1)), {c.node().get_int("axis", -1)});
  c.out(0, f.mul(c.in(1), f.sub(c.in(0), sum)));
});

// dx = dy - exp(y) * sum(dy)
ORTMODULE_OP("ai.ortmodule", LogSoftmaxGrad, 1).apply(softmax_grad_like).body([](BodyContext& c) {
  BodyFormula f(c);
  NodeArg* sum = f.sum(c.in(0), {c.node().get_int("axis", -1)});
  c.out(0, f.sub(c.in(0), f.mul(f.unary("Exp", c.in(1)), sum)));
});

}  // namespace ortmodule

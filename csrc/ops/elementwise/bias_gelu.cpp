// com.microsoft's Gelu, FastGelu (with tanh) and BiasGelu: the standard's Gelu, the last two of a sum with a bias of
// the last axis. Gradients go through the standard's operator; the sum is computed again.
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// dX and the bias's gradient of gelu(X + bias).
void gelu_gradient(GradContext& c, const char* approximate) {
  const bool biased = c.input_count() > 1 && c.I(1);
  NodeArg* sum = biased ? c.emit("Add", {c.I(0), c.I(1)}) : c.I(0);
  NodeArg* dx = c.emit("ai.ortmodule::GeluGrad", {c.GO(0), sum}, {{"approximate", std::string(approximate)}});
  c.GI(0, dx);
  if (biased && c.needs(1)) c.GI(1, c.reduce_to(dx, c.I(1)));
}

void gelu_body(BodyContext& c, const char* approximate) {
  NodeArg* sum = c.node().input(1) ? c.emit("Add", {c.in(0), c.in(1)}) : c.in(0);
  c.out(0, c.emit("Gelu", {sum}, {{"approximate", std::string(approximate)}}));
}

}  // namespace

ORTMODULE_OP("com.microsoft", Gelu, 1)
    .input("X")
    .output("Y")
    .infer(infer_same)
    .traits(kElementwise)
    .grad({"X"}, [](GradContext& c) { gelu_gradient(c, "none"); })
    .body([](BodyContext& c) { gelu_body(c, "none"); });

ORTMODULE_OP("com.microsoft", FastGelu, 1)
    .input("X")
    .optional_input("bias")
    .output("Y")
    .infer(infer_same)
    .grad({"X", "bias"}, [](GradContext& c) { gelu_gradient(c, "tanh"); })
    .body([](BodyContext& c) { gelu_body(c, "tanh"); });

ORTMODULE_OP("com.microsoft", BiasGelu, 1)
    .input("A")
    .input("B")
    .output("C")
    .infer(infer_same)
    .grad({"A", "B"}, [](GradContext& c) { gelu_gradient(c, "none"); })
    .body([](BodyContext& c) { gelu_body(c, "none"); });

}  // namespace ortmodule

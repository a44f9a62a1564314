// com.microsoft's FusedConv: activation(Conv(X, W, B) + Z), where the sum stays in the registers of the convolution.
//
// transforms/passes/fuse_conv.cpp puts it in graphs of inference. Its gradient computes it again.
#include "ops/conv/conv_shape.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// "Relu", "Sigmoid", "Tanh", or with parameters: "LeakyRelu" (alpha), "Clip" (min, max), "HardSigmoid" (alpha, beta).
void fused_conv(OpRecord& r) {
  r.input("X")
      .input("W")
      .optional_input("B")
      .optional_input("Z")
      .output("Y")
      .apply(conv_attributes)
      .attr("activation", AttrKind::kString)
      .attr("activation_params", AttrKind::kFloats);
}

void body(BodyContext& c) {
  const std::string name = c.node().get_string("activation", "");
  Attributes of_conv = c.node().attributes();
  of_conv.erase("activation");
  of_conv.erase("activation_params");
  NodeArg* y = c.emit("Conv", {c.in(0), c.in(1), c.in(2)}, std::move(of_conv));
  if (c.in(3)) y = c.emit("Add", {y, c.in(3)});
  std::vector<double> given;
  if (const AttributeValue* value = c.node().find_attribute("activation_params"))
    given = std::get<std::vector<double>>(*value);
  if (name == "Clip") {
    NodeArg* const least = given.empty() ? nullptr : c.scalar(given[0], y);
    y = c.emit("Clip", {y, least, given.size() > 1 ? c.scalar(given[1], y) : nullptr});
  } else if (!name.empty()) {
    Attributes attributes;
    if (!given.empty()) attributes["alpha"] = given[0];
    if (given.size() > 1) attributes["beta"] = given[1];
    y = c.emit(name, {y}, std::move(attributes));
  }
  c.out(0, y);
}

}  // namespace

ORTMODULE_OP("com.microsoft", FusedConv, 1)
    .apply(fused_conv)
    .infer([](InferContext& c) { infer_convolution(c, 0, 1, c.dtype(0)); })
    .body(body)
    .flops(conv_flops)
    .grad({"X", "W", "B", "Z"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::FusedConvGrad"); });
ORTMODULE_OP("ai.ortmodule", FusedConvGrad, 1).apply(rerun_record);

}  // namespace ortmodule

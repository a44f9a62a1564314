// The optimizers of ai.onnx.preview.training: Adagrad, Adam, Momentum. One node updates any number of tensors; inputs
// and outputs list all parameters first, then all gradients (inputs only), then each kind of state.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// R (learning rate), T (update count), then `kinds` groups of equal length: X, G, states.
template <size_t kinds>
void infer_optimizer(InferContext& c) {
  const size_t tensors = c.input_count() - 2;
  if (c.input_count() < 2 || tensors % kinds != 0)
    c.error(str("expected R, T and ", kinds, " tensors per parameter, got ", c.input_count(), " inputs"));
  const size_t n = tensors / kinds;
  for (size_t kind = 0; kind + 1 < kinds; ++kind)
    for (size_t i = 0; i < n; ++i)
      c.same_as(kind * n + i, 2 + (kind == 0 ? 0 : (kind + 1) * n) + i);  // no output for the gradients
}

void optimizer(OpRecord& r) {
  r.host_input("R")
      .host_input("T")
      .variadic_input("inputs")
      .output("outputs", Presence::kVariadic)
      .attr("norm_coefficient", AttrKind::kFloat)
      .not_differentiable();
}

}  // namespace

ORTMODULE_OP("ai.onnx.preview.training", Adagrad, 1)
    .apply(optimizer)
    .attr("decay_factor", AttrKind::kFloat)
    .attr("epsilon", AttrKind::kFloat)
    .infer(infer_optimizer<3>);

ORTMODULE_OP("ai.onnx.preview.training", Adam, 1)
    .apply(optimizer)
    .attr("alpha", AttrKind::kFloat)
    .attr("beta", AttrKind::kFloat)
    .attr("epsilon", AttrKind::kFloat)
    .attr("norm_coefficient_post", AttrKind::kFloat)
    .infer(infer_optimizer<4>);

ORTMODULE_OP("ai.onnx.preview.training", Momentum, 1)
    .apply(optimizer)
    .required_attr("alpha", AttrKind::kFloat)
    .required_attr("beta", AttrKind::kFloat)
    .required_attr("mode", AttrKind::kString)
    .infer([](InferContext& c) {
      const std::string mode = c.node().get_string("mode", "");
      if (mode != "standard" && mode != "nesterov")
        c.error("mode should be 'standard' or 'nesterov', got '" + mode + "'");
      infer_optimizer<3>(c);
    });

}  // namespace ortmodule

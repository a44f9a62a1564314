// The update rules of torch.optim's SGD, Adam and AdamW, one parameter a node, to the last bit.
//
// States are those of torch's optimizers under torch's names; `step` counts the updates before this one. With in_place
// the new values are written over the inputs, whose memory the outputs then are: for a graph that is nothing but the
// rule. Without it nothing is written.
#include "records/body_formula.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void rule(OpRecord& r) {
  r.host_input("learning_rate")
      .input("parameter")
      .input("gradient")
      .host_input("step", Presence::kOptional)
      .attr("weight_decay", AttrKind::kFloat)
      .attr("maximize", AttrKind::kInt)
      .attr("fused", AttrKind::kInt)  // torch's own fused kernel, where it has one
      .attr("in_place", AttrKind::kInt);
}

// Before weight decay.
NodeArg* direction(BodyFormula& f) {
  NodeArg* gradient = f.c.in(2);
  return f.c.node().get_int("maximize", 0) ? f.unary("Neg", gradient) : gradient;
}

NodeArg* like(BodyFormula& f, NodeArg* number, NodeArg* x) { return f.cast(number, x->type().dtype); }

void sgd_body(BodyContext& c) {
  BodyFormula f(c);
  const double decay = c.node().get_float("weight_decay", 0), momentum = c.node().get_float("momentum", 0),
               dampening = c.node().get_float("dampening", 0);
  NodeArg* parameter = c.in(1);
  NodeArg* gradient = direction(f);
  if (decay != 0) gradient = f.add(gradient, f.mul(parameter, decay));
  if (momentum != 0) {
    NodeArg* buffer = f.add(f.mul(c.in(4), momentum), f.mul(gradient, 1 - dampening));
    buffer = f.where(f.greater(c.in(3), 0), buffer, gradient);
    gradient = c.node().get_int("nesterov", 0) ? f.add(gradient, f.mul(buffer, momentum)) : buffer;
    if (c.wants(1)) c.out(1, f.add(c.in(3), 1));
    if (c.wants(2)) c.out(2, buffer);
  }
  c.out(0, f.sub(parameter, f.mul(gradient, like(f, c.in(0), parameter))));
}

void adam_body(BodyContext& c) {
  BodyFormula f(c);
  const Node& node = c.node();
  const double decay = node.get_float("weight_decay", 0), beta1 = node.get_float("beta1", 0.9),
               beta2 = node.get_float("beta2", 0.999);
  NodeArg *parameter = c.in(1), *rate = like(f, c.in(0), parameter), *gradient = direction(f),
          *step = f.add(c.in(3), 1);
  if (decay != 0 && node.get_int("decoupled", 0))
    parameter = f.sub(parameter, f.mul(parameter, f.mul(rate, decay)));
  else if (decay != 0)
    gradient = f.add(gradient, f.mul(parameter, decay));
  NodeArg* first = f.add(f.mul(c.in(4), beta1), f.mul(gradient, 1 - beta1));
  NodeArg* second = f.add(f.mul(c.in(5), beta2), f.mul(f.mul(gradient, gradient), 1 - beta2));
  NodeArg* largest = node.get_int("amsgrad", 0) ? c.emit("Max", {c.in(6), second}) : second;
  // Of numbers, which torch has as doubles.
  NodeArg* count = f.cast(step, DType::kDouble);
  const auto correction = [&](double beta) { return f.from(1, c.emit("Pow", {c.scalar(beta, count), count})); };
  NodeArg* root = f.div(f.unary("Sqrt", largest), like(f, f.unary("Sqrt", correction(beta2)), parameter));
  NodeArg* length = like(f, f.div(f.cast(c.in(0), DType::kDouble), correction(beta1)), parameter);
  c.out(0, f.sub(parameter, f.mul(f.div(first, f.add(root, node.get_float("epsilon", 1e-8))), length)));
  NodeArg* states[] = {step, first, second, largest};
  for (size_t i = 0; i < 4; ++i)
    if (c.wants(i + 1)) c.out(i + 1, states[i]);
}

}  // namespace

// torch.optim.SGD; without momentum there is no state, and no step is counted.
ORTMODULE_OP("ai.ortmodule", SGD, 1)
    .apply(rule)
    .optional_input("momentum_buffer")
    .output("new_parameter")
    .output("new_step", Presence::kOptional)
    .output("new_momentum_buffer", Presence::kOptional)
    .attr("momentum", AttrKind::kFloat)
    .attr("dampening", AttrKind::kFloat)
    .attr("nesterov", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (c.node().get_float("momentum", 0) != 0 && !(c.has(3) && c.has(4)))
        c.error("momentum needs the inputs step and momentum_buffer");
      infer_like<1, 3, 4>(c);
    })
    .body(sgd_body)
    .not_differentiable();

// torch.optim.Adam, and with `decoupled` torch.optim.AdamW.
ORTMODULE_OP("ai.ortmodule", Adam, 1)
    .apply(rule)
    .input("exp_avg")
    .input("exp_avg_sq")
    .optional_input("max_exp_avg_sq")
    .output("new_parameter")
    .output("new_step", Presence::kOptional)
    .output("new_exp_avg", Presence::kOptional)
    .output("new_exp_avg_sq", Presence::kOptional)
    .output("new_max_exp_avg_sq", Presence::kOptional)
    .attr("beta1", AttrKind::kFloat)
    .attr("beta2", AttrKind::kFloat)
    .attr("epsilon", AttrKind::kFloat)
    .attr("amsgrad", AttrKind::kInt)
    .attr("decoupled", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (!c.has(3)) c.error("the input step is needed");
      if (c.node().get_int("amsgrad", 0) && !c.has(6)) c.error("amsgrad needs the input max_exp_avg_sq");
      infer_like<1, 3, 4, 5, 6>(c);
    })
    .body(adam_body)
    .not_differentiable();

}  // namespace ortmodule

// SoftmaxCrossEntropyLoss: -log_softmax(scores)[label], weighted and reduced as torch.nn.functional.cross_entropy does.
//
// Note [Two numbers per row]
// Backward needs softmax(scores) = exp(scores - max - log_sum). Saving max and log_sum of each row instead of the
// standard's log_prob means that forward reads the scores and writes nothing of their size, and that backward turns
// the scores themselves into their gradient where nobody else holds them: one vocabulary-sized buffer in all, where
// eager has three. max and log_sum stay two numbers, because their sum would lose the digits of a small log_sum
// beside a large max.
#include "base/status.h"
#include "ops/loss/loss_rules.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_cross_entropy(InferContext& c) {
  const auto labels = label_shape(c, 0);
  check_labels(c, labels);
  infer_reduced(c, labels);
  if (c.wants(1)) c.same_as(1, 0);
  std::optional<Shape> stats = labels;
  if (stats) stats->insert(stats->begin(), Dim(2));
  c.out(2, c.dtype(0) == DType::kDouble ? DType::kDouble : DType::kFloat, std::move(stats));
}

Attributes loss_attributes(const Node& node) {
  Attributes out{{"reduction", node.get_string("reduction", "mean")}};
  if (node.find_attribute("ignore_index")) out["ignore_index"] = node.get_int("ignore_index", 0);
  return out;
}

void cross_entropy_gradient(GradContext& c) {
  NodeArg* grad = nullptr;
  if (c.GO(0))
    grad = c.emit("ai.ortmodule::SoftmaxCrossEntropyLossGrad", {c.GO(0), c.I(0), c.I(1), c.saved("stats"), c.I(2)},
                  loss_attributes(c.node()));
  if (c.GO(1)) {
    NodeArg* sum = c.emit("ReduceSum", {c.GO(1), c.ints({1})}, {{"keepdims", int64_t{1}}});
    NodeArg* through_log_prob = c.emit("Sub", {c.GO(1), c.emit("Mul", {c.emit("Exp", {c.O(1)}), sum})});
    grad = grad ? c.emit("Add", {grad, through_log_prob}) : through_log_prob;
  }
  c.GI(0, grad);
}

void nll_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::NegativeLogLikelihoodLossGrad", {c.GO(0), c.I(1), c.I(2), c.sizes_of(c.I(0))},
                 loss_attributes(c.node())));
}

// What the bodies of both gradients share. All have a dimension of 1 for the classes.
struct LabelBody {
  NodeArg* hit;     // bool [N, C, d...]: this class is the label
  NodeArg* factor;  // d(loss) / d(-log_prob[label]), zero where the label is ignored
};

LabelBody label_body(BodyFormula& f, NodeArg* dy, NodeArg* labels, NodeArg* weights, NodeArg* class_count) {
  BodyContext& c = f.c;
  const int64_t rank = f.rank(labels);
  const std::string reduction = c.node().get_string("reduction", "mean");
  labels = f.unsqueeze(f.cast(labels, DType::kInt64), {1});
  NodeArg* valid = nullptr;
  if (c.node().find_attribute("ignore_index")) {
    NodeArg* ignored = c.emit("Equal", {labels, c.scalar_int(c.node().get_int("ignore_index", 0))});
    valid = f.unary("Not", ignored);
    labels = f.where(valid, labels, c.scalar_int(0));
  }
  std::vector<int64_t> column(static_cast<size_t>(rank), 1);
  column[0] = -1;
  NodeArg* hit = c.emit("Equal", {labels, f.reshape(f.range(class_count), column)});
  NodeArg* weight = nullptr;
  if (weights) weight = c.emit("Gather", {f.cast(weights, dy->type().dtype), labels});
  if (valid) weight = weight ? f.keep(valid, weight) : f.cast(valid, dy->type().dtype);
  if (reduction == "none") dy = f.unsqueeze(dy, {1});
  if (reduction == "mean") {
    NodeArg* total = weight ? c.emit("ReduceSum", {weight}, {{"keepdims", int64_t{0}}})
                            : f.cast(f.unary("Size", labels), dy->type().dtype);
    dy = f.div(dy, total);
  }
  if (!weight) return {hit, dy};
  // Exactly zero for an ignored label, also when all are.
  return {hit, valid ? f.keep(valid, f.mul(weight, dy)) : f.mul(weight, dy)};
}

void cross_entropy_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* scores = c.in(1);
  const DType type = is_reduced_floating(scores->type().dtype) ? DType::kFloat : scores->type().dtype;
  const LabelBody l = label_body(f, f.cast(c.in(0), type), c.in(2), c.in(4), f.shape(scores, 1, 2));
  NodeArg* p = c.emit("Softmax", {f.cast(scores, type)}, {{"axis", int64_t{1}}});
  NodeArg* off = f.mul(p, l.factor);
  c.out(0, f.cast(f.where(l.hit, f.sub(off, l.factor), off), scores->type().dtype));
}

void nll_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const LabelBody l = label_body(f, c.in(0), c.in(1), c.in(2), f.part(c.in(3), 1, 2));
  c.out(0, f.keep(l.hit, f.unary("Neg", l.factor)));
}

void loss_attrs(OpRecord& op) { op.attr("ignore_index", AttrKind::kInt).attr("reduction", AttrKind::kString); }

}  // namespace

// scores[N, C, d...], labels[N, d...], weights[C] -> output[] or [N, d...], log_prob[N, C, d...]; stats[2, N, d...].
ORTMODULE_OP("", SoftmaxCrossEntropyLoss, 12)
    .input("scores")
    .input("labels")
    .optional_input("weights")
    .output("output")
    .output("log_prob", Presence::kOptional)
    .saved("stats")
    .apply(loss_attrs)
    .infer(infer_cross_entropy)
    .grad({"scores"}, cross_entropy_gradient)
    .no_grad({"labels", "weights"});

ORTMODULE_OP("ai.ortmodule", SoftmaxCrossEntropyLossGrad, 1)
    .input("dy")
    .input("scores")
    .input("labels")
    .input("stats")
    .optional_input("weights")
    .output("d_scores")
    .apply(loss_attrs)
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable()
    .body(cross_entropy_grad_body);

// input[N, C, d...] holds log-probabilities; the rest is as above.
ORTMODULE_OP("", NegativeLogLikelihoodLoss, 12)
    .input("input")
    .input("target")
    .optional_input("weight")
    .output("loss")
    .apply(loss_attrs)
    .infer([](InferContext& c) {
      const auto labels = label_shape(c, 0);
      check_labels(c, labels);
      infer_reduced(c, labels);
    })
    .grad({"input"}, nll_gradient)
    .no_grad({"target", "weight"});

ORTMODULE_OP("ai.ortmodule", NegativeLogLikelihoodLossGrad, 1)
    .input("dy")
    .input("target")
    .optional_input("weight")
    .host_input("input_sizes")
    .output("d_input")
    .apply(loss_attrs)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(3)); })
    .not_differentiable()
    .body(nll_grad_body);

}  // namespace ortmodule

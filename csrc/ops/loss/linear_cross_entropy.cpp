// LinearCrossEntropy: a vocabulary projection and its softmax cross entropy as one operator, so that the scores never
// exist whole.
//
// Note [Scores in chunks]
// Rows go through in chunks of a bounded number of scores. The loss is a mean or a sum, so what flows back into it is
// one number, and the gradient of a chunk's scores is known up to that number as soon as its softmax is: it replaces
// the scores in place, goes into the gradients of x and w, and is gone. The last chunk's (`d_scores`, of most batches
// the only one) is kept instead, and its products wait for backward: no work is done early, and no gradient lies
// around, unless the scores are large. Recomputing the scores in backward would cost a fourth product.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

enum Input : size_t { kX, kWeight, kBias, kLabels, kClassWeights };

void infer_loss(InferContext& c) {
  const Shape *x = c.shape_of_rank(kX, 2), *w = c.shape_of_rank(kWeight, 2);
  const std::string reduction = c.node().get_string("reduction", "mean");
  if (reduction != "mean" && reduction != "sum") c.error(str("reduction should be mean or sum, got '", reduction, "'"));
  if (!is_integer(c.dtype(kLabels))) c.error(str("labels should be integers, got ", dtype_name(c.dtype(kLabels))));
  const DType loss = c.dtype(kX) == DType::kDouble ? DType::kDouble : DType::kFloat;
  c.out(0, loss, Shape{});
  // How many rows the last chunk has is known at run time only.
  std::optional<Shape> d_scores, early_dx, dw, db;
  const Shape rows = c.fresh_shape(4);
  if (w) d_scores = Shape{rows[0], (*w)[0]};
  if (x) early_dx = Shape{rows[1], (*x)[1]};
  if (x) dw = Shape{rows[2], (*x)[1]};
  db = Shape{rows[3]};
  c.out(1, c.dtype(kX), std::move(d_scores));
  c.out(2, c.dtype(kX), std::move(early_dx));
  c.out(3, c.dtype(kX), std::move(dw));
  c.out(4, c.dtype(kX), std::move(db));
}

void loss_gradient(GradContext& c) {
  const bool dx = c.needs(kX), dw = c.needs(kWeight), db = c.needs(kBias);
  const auto grads = c.emit_some(
      "ai.ortmodule::LinearCrossEntropyGrad",
      {c.GO(0), c.saved("d_scores"), dw ? c.I(kX) : nullptr, dx ? c.I(kWeight) : nullptr,
       dx ? c.saved("early_dx") : nullptr, dw ? c.saved("early_dw") : nullptr, db ? c.saved("early_db") : nullptr},
      {dx, dw, db});
  for (size_t i = 0; i < 3; ++i) {
    if (grads[i]) grads[i]->set_type(c.I(i)->type());
    c.GI(i, grads[i]);
  }
}

// Three products, two of which are the gradient: it is never run twice.
std::optional<RecomputeForm> no_second_run(const Node&) { return std::nullopt; }

}  // namespace

// x[N, D], weight[V, D], bias[V], labels[N], class_weights[V] -> loss[], float or wider.
ORTMODULE_OP("ai.ortmodule", LinearCrossEntropy, 1)
    .input("x")
    .input("weight")
    .optional_input("bias")
    .input("labels")
    .optional_input("class_weights")
    .output("loss")
    .saved("d_scores")
    .saved("early_dx")
    .saved("early_dw")
    .saved("early_db")
    .attr("ignore_index", AttrKind::kInt)
    .attr("reduction", AttrKind::kString)
    .attr("chunk", AttrKind::kInt)  // scores per chunk at most; absent: chosen
    .infer(infer_loss)
    .grad({"x", "weight", "bias"}, loss_gradient)
    .no_grad({"labels", "class_weights"})
    .recompute(no_second_run)
    .body([](BodyContext& c) {
      NodeArg* turned = c.emit("Transpose", {c.in(kWeight)}, {{"perm", std::vector<int64_t>{1, 0}}});
      NodeArg* scores = c.emit("MatMul", {c.in(kX), turned});
      if (c.in(kBias)) scores = c.emit("Add", {scores, c.in(kBias)});
      if (is_reduced_floating(scores->type().dtype))
        scores = c.emit("Cast", {scores}, {{"to", static_cast<int64_t>(DType::kFloat)}});
      Attributes attributes{{"reduction", c.node().get_string("reduction", "mean")}};
      if (c.node().find_attribute("ignore_index")) attributes["ignore_index"] = c.node().get_int("ignore_index", 0);
      c.out(0, c.emit("SoftmaxCrossEntropyLoss", {scores, c.in(kLabels), c.in(kClassWeights)}, std::move(attributes)));
    });

// dy[] and what forward kept -> dx[N, D], dw[V, D], db[V].
ORTMODULE_OP("ai.ortmodule", LinearCrossEntropyGrad, 1)
    .input("dy")
    .input("d_scores")
    .optional_input("x")
    .optional_input("weight")
    .optional_input("early_dx")
    .optional_input("early_dw")
    .optional_input("early_db")
    .output("dx", Presence::kOptional)
    .output("dw", Presence::kOptional)
    .output("db", Presence::kOptional)
    .infer([](InferContext& c) {
      const Shape *scores = c.shape(1), *x = c.shape(2), *w = c.shape(3);
      std::optional<Shape> dx, dw, db;
      if (w) dx = Shape{c.fresh_dim(), (*w)[1]};
      if (scores && x) dw = Shape{(*scores)[1], (*x)[1]};
      if (scores) db = Shape{(*scores)[1]};
      c.out(0, c.dtype(1), std::move(dx));
      c.out(1, c.dtype(1), std::move(dw));
      c.out(2, c.dtype(1), std::move(db));
    })
    .not_differentiable();

}  // namespace ortmodule

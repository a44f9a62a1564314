// Dropout in two forms.
//
// The standard's Dropout draws exactly as PyTorch's eager dropout does and keeps the boolean mask. It is the form for
// bit parity. ai.ortmodule::PhiloxDropout is what training runs by default: the mask is a function of (state, stream,
// element index), so that backward recomputes it and nothing of the tensor's size is stored.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/recompute_form.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_dropout(InferContext& c) {
  c.same_as(0, 0);
  c.out(1, DType::kBool, c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
}

void dropout_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::DropoutGrad", {c.GO(0), c.O(1), c.I(1), c.I(2)}));
}

// The same map on dy: the mask is a function of the state, the stream and the element's place.
void philox_dropout_gradient(GradContext& c) {
  const Attributes stream{{"stream", c.node().get_int("stream", 0)}};
  c.GI(0, c.emit("ai.ortmodule::PhiloxDropout", {c.GO(0), c.I(1), c.I(2), c.I(3)}, stream));
}

// Where the mask is to be the whole's, what it is on some rows alone hangs on which rows these are.
constexpr RowRule kPhiloxRows{
    .inputs = [](const Node& node, const Shape& out,
                 size_t lead) { return node.input(3) ? std::nullopt : rows_of(node, 0, out, lead); },
    .axes = [](const Node& node, const Shape&, RowAxes axes) { return of_first(node, axes); },
    .compact =
        [](CompactNode& c) {
          if (!c.node.get_int("whole", 0)) return;
          c.inputs.resize(4, nullptr);
          c.inputs[3] = c.rows;
        }};

std::optional<RecomputeForm> stored_mask(const Node& node) {
  if (!node.output(1)) return std::nullopt;
  return RecomputeForm{
      "ai.ortmodule", "DropoutGrad", {node.input(0), node.output(1), node.input(1), node.input(2)}, {}};
}

// Not of backward, which would draw another mask.
void philox_body(BodyContext& c) {
  if (c.node().phase() == Phase::kBackward) return;
  NodeArg* training = c.node().graph().constant(TensorData::scalar(DType::kBool, 1));
  c.out(0, c.emit("Dropout", {c.in(0), c.in(1), training}));
}

// Outside training nothing was scaled and the mask is true everywhere.
void dropout_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* ratio = c.in(2) ? f.cast(c.in(2), c.in(0)->type().dtype) : c.scalar(0.5, c.in(0));
  NodeArg* scaled = f.keep(c.in(1), f.div(c.in(0), f.from(1, ratio)));
  c.out(0, c.in(3) ? f.where(c.in(3), scaled, c.in(0)) : c.emit("Identity", {c.in(0)}));
}

// A mask of the data's type came with opsets before 10; before 7 the attribute is_test chose, and training was meant
// where it was absent.
void upgrade_dropout(UpgradeContext& c) {
  const auto ratio = c.take_float("ratio");
  const bool training = c.opset() < 7 && c.take_int("is_test").value_or(0) == 0;
  c.drop("consumed_inputs");
  if (c.opset() < 10 && c.wants(1)) {
    NodeArg* mask = c.node().output(1);
    if (training && !mask->uses().empty()) c.unsupported("the output 'mask' of training is not supported");
    if (mask->is_graph_output()) c.unsupported("the output 'mask' as the model's is not supported");
    if (!mask->uses().empty()) {
      NodeArg* sizes = c.emit("Shape", {c.I(0)});
      c.node().graph().replace_all_uses(mask, c.emit("Expand", {c.scalar(1, c.dtype(0)), sizes}));
    }
    c.node().graph().drop_output(&c.result(), 1);
  }
  std::vector<NodeArg*> inputs{c.I(0), c.scalar(ratio.value_or(0.5), DType::kFloat)};
  if (c.opset() < 7) inputs.push_back(c.scalar(training, DType::kBool));
  c.rewrite(inputs);
}

}  // namespace

// data, ratio (0.5 when absent), training_mode (false when absent) -> output, mask (bool; true: kept)
ORTMODULE_OP("", Dropout, 12)
    .older(1, 11, upgrade_dropout)
    .input("data")
    .host_input("ratio", Presence::kOptional)
    .host_input("training_mode", Presence::kOptional)
    .output("output")
    .output("mask", Presence::kOptional)
    .attr("seed", AttrKind::kInt)
    .infer(infer_dropout)
    .traits(kRandom)
    .grad({"data"}, dropout_gradient)
    .recompute(stored_mask);

// dx = dy * mask / (1 - ratio)
ORTMODULE_OP("ai.ortmodule", DropoutGrad, 1)
    .input("dy")
    .input("mask")
    .host_input("ratio", Presence::kOptional)
    .host_input("training_mode", Presence::kOptional)
    .output("dx")
    .infer(infer_same)
    .traits(kElementwise)
    .not_differentiable()
    .body(dropout_grad_body);

// Note [Random state]
// A run draws two words of torch's generator once, a seed and an offset, whatever drops elements in it. Each node that
// does has a stream of its own, a constant that is added to the offset, and the number of an element's place in it
// (philox.h). So a mask does not depend on the order in which nodes run, backward and recomputation find it again from
// the same three things, and who runs a recorded graph again needs to change two words. Bodies of If and Loop draw a
// state of their own each time they run.
ORTMODULE_OP("ai.ortmodule", RandomState, 1)
    .output("state")
    .attr("streams", AttrKind::kInt)  // how many were given out
    .infer([](InferContext& c) { c.out(0, DType::kInt64, Shape{Dim(2)}); })
    .traits(kRandom | kHostOutput);

// y = x * kept / (1 - ratio); state is a RandomState's int64[2] in host memory. Where there are `rows`, x[m, rest...]
// holds those rows of a whole, and elements have the numbers that they have in it (Note [Compact rows]).
ORTMODULE_OP("ai.ortmodule", PhiloxDropout, 1)
    .input("x")
    .host_input("ratio")
    .host_input("state")
    .host_input("rows", Presence::kOptional)
    .output("y")
    .attr("stream", AttrKind::kInt)
    .attr("whole", AttrKind::kInt)  // on rows alone it has the input `rows`
    .infer(infer_same)
    .traits(kCheap)
    .grad({"x"}, philox_dropout_gradient)
    .body(philox_body)
    .rows(kPhiloxRows)
    .fuses([](FusionContext& c) {
      const auto ratio = c.constant(1);
      if (!ratio || c.node().input(3)) return false;
      c.out(0, c.append({Opcode::kPhiloxDropout, {c.in(0), c.in(2), -1}, *ratio, c.node().get_int("stream", 0)}));
      return true;
    });

}  // namespace ortmodule

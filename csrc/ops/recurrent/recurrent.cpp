// RNN, GRU and LSTM over one layer, in all variants of the standard. The gradient runs the layer again under autograd.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

// X[seq, batch, input], W[directions, gates*hidden, input], R[directions, gates*hidden, hidden]
// -> Y[seq, directions, batch, hidden], Y_h[directions, batch, hidden], Y_c like Y_h; batch comes first with layout 1.
template <int64_t gates>
void infer_recurrent(InferContext& c) {
  const Node& node = c.node();
  const Shape *x = c.shape_of_rank(0, 3), *w = c.shape_of_rank(1, 3), *r = c.shape_of_rank(2, 3);
  const bool batch_first = c.attr_int("layout", 0) != 0;
  const std::string direction = node.get_string("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    c.error("direction should be 'forward', 'reverse' or 'bidirectional', got '" + direction + "'");
  const Dim directions(direction == "bidirectional" ? 2 : 1);
  Dim hidden = r ? (*r)[2] : c.fresh_dim();
  if (const int64_t given = c.attr_int("hidden_size", 0); given > 0) {
    if (hidden.is_known() && hidden.value() != given)
      c.error(str("hidden_size is ", given, ", R is for ", hidden.value()));
    hidden = Dim(given);
  }
  for (const Shape* weight : {w, r}) {
    if (!weight) continue;
    if ((*weight)[0].is_known() && (*weight)[0] != directions)
      c.error(str("the weights are for ", (*weight)[0].text(), " directions, direction is '", direction, "'"));
    if ((*weight)[1].is_known() && hidden.is_known() && (*weight)[1].value() != gates * hidden.value())
      c.error(str("expected weights of ", gates * hidden.value(), " rows, got ", (*weight)[1].value()));
  }
  if (x && w && (*x)[2].is_known() && (*w)[2].is_known() && (*x)[2] != (*w)[2])
    c.error(str("X has ", (*x)[2].text(), " features, W is for ", (*w)[2].text()));
  const Shape unknown = c.fresh_shape(3);  // the first is `hidden`'s
  const Dim seq = x ? (*x)[batch_first ? 1 : 0] : unknown[1], batch = x ? (*x)[batch_first ? 0 : 1] : unknown[2];
  const Shape state = batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  c.out(0, c.dtype(0), batch_first ? Shape{batch, seq, directions, hidden} : Shape{seq, directions, batch, hidden});
  c.out(1, c.dtype(0), state);
  c.out(2, c.dtype(0), state);
}

void recurrent(OpRecord& r) {
  r.input("X")
      .input("W")
      .input("R")
      .optional_input("B")
      .optional_input("sequence_lens")
      .optional_input("initial_h")
      .no_grad({"sequence_lens"})
      .attr("activation_alpha", AttrKind::kFloats)
      .attr("activation_beta", AttrKind::kFloats)
      .attr("activations", AttrKind::kStrings)
      .attr("clip", AttrKind::kFloat)
      .attr("direction", AttrKind::kString)
      .attr("hidden_size", AttrKind::kInt)
      .attr("layout", AttrKind::kInt);
}

void states(OpRecord& r) { r.output("Y", Presence::kOptional).output("Y_h", Presence::kOptional); }

}  // namespace

ORTMODULE_OP("", RNN, 7)
    .apply(recurrent)
    .apply(states)
    .infer(infer_recurrent<1>)
    .grad({"X", "W", "R", "B", "initial_h"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::RNNGrad"); });
ORTMODULE_OP("ai.ortmodule", RNNGrad, 1).apply(rerun_record);

ORTMODULE_OP("", GRU, 7)
    .apply(recurrent)
    .apply(states)
    .attr("linear_before_reset", AttrKind::kInt)
    .infer(infer_recurrent<3>)
    .grad({"X", "W", "R", "B", "initial_h"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::GRUGrad"); });
ORTMODULE_OP("ai.ortmodule", GRUGrad, 1).apply(rerun_record);

ORTMODULE_OP("", LSTM, 7)
    .apply(recurrent)
    .optional_input("initial_c")
    .optional_input("P")
    .apply(states)
    .output("Y_c", Presence::kOptional)
    .attr("input_forget", AttrKind::kInt)
    .infer(infer_recurrent<4>)
    .grad({"X", "W", "R", "B", "initial_h", "initial_c", "P"},
          [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::LSTMGrad"); });
ORTMODULE_OP("ai.ortmodule", LSTMGrad, 1).apply(rerun_record);

}  // namespace ortmodule

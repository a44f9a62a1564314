// LSTMTraining and GRUTraining of com.microsoft with LSTMGrad and GRUGrad: the standard's layers, which also give what
// backward needs. They come in graphs that ONNX Runtime's training made; our own are made of RecurrentLayer.
//
// As in ONNX Runtime, default activations only, without clip, peepholes, input_forget and sequence lengths.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// X[seq, batch, input], W[directions, gates*hidden, input], R[directions, gates*hidden, hidden] -> HAll[seq,
// directions, batch, hidden], FinalH[directions, batch, hidden], and the gates' values [seq, directions, batch,
// gates*hidden].
template <int64_t gates>
void infer_training(InferContext& c) {
  const auto refuse = [&](bool wrong, const char* what) {
    ORTMODULE_CHECK(!wrong, kUnsupported, "[", c.node().op(), "] ", what, " is not supported (", c.node().describe(),
                    ")");
  };
  refuse(c.has(4), "sequence_lens");
  refuse(gates == 4 && c.has(7), "P, the peepholes,");
  refuse(c.attr_float("clip", 0) != 0, "clip");
  refuse(c.attr_int("input_forget", 0) != 0, "input_forget");
  refuse(gates == 3 && c.attr_int("linear_before_reset", 0) == 0, "linear_before_reset = 0");
  for (const std::string& name : c.node().get_strings("activations")) {
    std::string lower = name;
    for (char& letter : lower) letter = static_cast<char>(letter | 0x20);
    refuse(lower != "sigmoid" && lower != "tanh", "an activation but the default ones");
  }
  const Shape *x = c.shape_of_rank(0, 3), *r = c.shape_of_rank(2, 3);
  const Shape unknown = c.fresh_shape(4);
  const Dim seq = x ? (*x)[0] : unknown[0], batch = x ? (*x)[1] : unknown[1], directions = r ? (*r)[0] : unknown[2],
            hidden = r ? (*r)[2] : unknown[3];
  const Shape all{seq, directions, batch, hidden}, last{directions, batch, hidden};
  const Shape inside{seq, directions, batch, hidden * Dim(gates)};
  size_t slot = 0;
  for (const Shape& shape :
       gates == 4 ? std::vector<Shape>{all, last, last, all, inside} : std::vector<Shape>{all, last, inside})
    c.out(slot++, c.dtype(0), shape);
}

void layer(OpRecord& r) {
  r.input("X").input("W").input("R").optional_input("B").optional_input("SL").optional_input("H0").no_grad({"SL"});
}
void attributes(OpRecord& r) {
  r.attr("activation_alpha", AttrKind::kFloats)
      .attr("activation_beta", AttrKind::kFloats)
      .attr("activations", AttrKind::kStrings)
      .attr("clip", AttrKind::kFloat)
      .attr("direction", AttrKind::kString)
      .attr("hidden_size", AttrKind::kInt);
}

// What is kept for backward is no function of the inputs to differentiate.
void refuse_gradients(GradContext& c, size_t first) {
  for (size_t i = first; i < c.node().outputs().size(); ++i)
    ORTMODULE_CHECK(!c.GO(i), kUnsupported, "[", c.node().op(), "] output ", i, " has no gradient (",
                    c.node().describe(), ")");
}

constexpr size_t kAbsent = 99;  // no node has so many inputs

// dX, dW and dR are like the first inputs, dB's width follows from W's; the rest is like the initial states.
template <size_t... states>
void infer_gradients(InferContext& c) {
  infer_like<0, 1, 2, kAbsent, states...>(c);
  const Shape* w = c.shape(1);
  if (w && w->size() == 3) c.out(3, c.dtype(0), Shape{(*w)[0], (*w)[1] * Dim(2)});
}

}  // namespace

ORTMODULE_OP("com.microsoft", LSTMTraining, 1)
    .apply(layer)
    .optional_input("C0")
    .optional_input("P")
    .no_grad({"P"})
    .output("HAll", Presence::kOptional)
    .output("FinalH", Presence::kOptional)
    .output("FinalC", Presence::kOptional)
    .output("CAll", Presence::kOptional)
    .output("IOFC", Presence::kOptional)
    .apply(attributes)
    .attr("input_forget", AttrKind::kInt)
    .infer(infer_training<4>)
    .grad({"X", "W", "R", "B", "H0", "C0"}, [](GradContext& c) {
      refuse_gradients(c, 3);
      const auto grads = c.emit_some(
          "com.microsoft::LSTMGrad",
          {c.I(0), c.I(1), c.I(2), nullptr, c.I(5), c.I(6), c.O(0), c.O(3), c.O(4), c.GO(0), c.GO(1), c.GO(2)},
          {c.needs(0), c.needs(1), c.needs(2), c.needs(3), c.needs(5), c.needs(6)}, c.node().attributes());
      const size_t slots[] = {0, 1, 2, 3, 5, 6};
      for (size_t i = 0; i < 6; ++i)
        if (grads[i]) c.GI(slots[i], grads[i]);
    });

ORTMODULE_OP("com.microsoft", LSTMGrad, 1)
    .input("X")
    .input("W")
    .input("R")
    .optional_input("SL")
    .optional_input("H0")
    .optional_input("C0")
    .input("HAll")
    .input("CAll")
    .input("IOFC")
    .optional_input("dHAll")
    .optional_input("dFinalH")
    .optional_input("dFinalC")
    .output("dX", Presence::kOptional)
    .output("dW", Presence::kOptional)
    .output("dR", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .output("dH0", Presence::kOptional)
    .output("dC0", Presence::kOptional)
    .apply(attributes)
    .attr("input_forget", AttrKind::kInt)
    .infer(infer_gradients<4, 5>)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", GRUTraining, 1)
    .apply(layer)
    .output("HAll", Presence::kOptional)
    .output("FinalH", Presence::kOptional)
    .output("ZRH", Presence::kOptional)
    .apply(attributes)
    .attr("linear_before_reset", AttrKind::kInt)
    .infer(infer_training<3>)
    .grad({"X", "W", "R", "B", "H0"}, [](GradContext& c) {
      refuse_gradients(c, 2);
      const auto grads = c.emit_some(
          "com.microsoft::GRUGrad", {c.I(0), c.I(1), c.I(2), c.I(3), nullptr, c.I(5), c.O(0), c.O(2), c.GO(0), c.GO(1)},
          {c.needs(0), c.needs(1), c.needs(2), c.needs(3), c.needs(5)}, c.node().attributes());
      const size_t slots[] = {0, 1, 2, 3, 5};
      for (size_t i = 0; i < 5; ++i)
        if (grads[i]) c.GI(slots[i], grads[i]);
    });

ORTMODULE_OP("com.microsoft", GRUGrad, 1)
    .input("X")
    .input("W")
    .input("R")
    .optional_input("B")
    .optional_input("SL")
    .optional_input("H0")
    .input("HAll")
    .input("ZRH")
    .optional_input("dHAll")
    .optional_input("dFinalH")
    .output("dX", Presence::kOptional)
    .output("dW", Presence::kOptional)
    .output("dR", Presence::kOptional)
    .output("dB", Presence::kOptional)
    .output("dH0", Presence::kOptional)
    .apply(attributes)
    .attr("linear_before_reset", AttrKind::kInt)
    .infer(infer_gradients<5>)
    .not_differentiable();

}  // namespace ortmodule

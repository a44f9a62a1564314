// RecurrentLayer: one direction of one layer of torch's LSTM, GRU and RNN, with the gates kept for its gradient.
//
// Why not the standard's operators: their weights have another order of gates, so that every step would copy them and
// their gradients; they have no projected outputs; and their gradients run the layer a second time. A stack of layers,
// two directions and dropout between layers are several nodes. The form in standard operators is in layer_body.cpp.
#include "base/status.h"
#include "ops/recurrent/layer_body.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

constexpr size_t kInputs = 8, kOutputs = 3;

int64_t gates_of(InferContext& c) {
  const std::string mode = c.node().get_string("mode", "");
  if (mode == "lstm") return 4;
  if (mode == "gru") return 3;
  if (mode != "tanh" && mode != "relu") c.error("mode should be 'lstm', 'gru', 'tanh' or 'relu', got '" + mode + "'");
  return 1;
}

void expect(InferContext& c, size_t input, const std::vector<std::optional<Dim>>& sizes) {
  const Shape* have = c.has(input) ? c.shape_of_rank(input, sizes.size()) : nullptr;
  for (size_t i = 0; have && i < sizes.size(); ++i) {
    const Dim& dim = (*have)[i];
    if (sizes[i] && sizes[i]->is_known() && dim.is_known() && dim != *sizes[i])
      c.error(str("input ", input, " has size ", dim.text(), " in axis ", i, ", expected ", sizes[i]->text()));
  }
}

void infer_layer(InferContext& c) {
  const int64_t gates = gates_of(c);
  const bool lstm = gates == 4, batch_first = c.attr_int("batch_first", 0) != 0;
  if (!lstm && (c.has(6) || c.has(7))) c.error("c0 and w_hr belong to the mode 'lstm'");
  const Shape *x = c.shape_of_rank(0, 3), *w_ih = c.shape_of_rank(1, 2), *w_hh = c.shape_of_rank(2, 2);
  const Shape* w_hr = c.has(7) ? c.shape_of_rank(7, 2) : nullptr;
  std::optional<Dim> hidden, outputs;
  if (w_hh) outputs = (*w_hh)[1];
  if (w_hr) outputs = (*w_hr)[0], hidden = (*w_hr)[1];
  if (!c.has(7)) hidden = outputs;
  const std::optional<Dim> rows = hidden ? std::optional<Dim>(*hidden * Dim(gates)) : std::nullopt;
  expect(c, 1, {rows, x ? std::optional<Dim>((*x)[2]) : std::nullopt});
  expect(c, 2, {rows, outputs});
  const std::optional<Dim> all = rows ? rows : w_ih ? std::optional<Dim>((*w_ih)[0]) : std::nullopt;
  for (size_t i = 3; i < 5; ++i) expect(c, i, {all});
  if (c.has(3) != c.has(4)) c.error("b_ih and b_hh come together");
  const std::optional<Dim> batch = x ? std::optional<Dim>((*x)[batch_first ? 0 : 1]) : std::nullopt;
  expect(c, 5, {batch, outputs});
  expect(c, 6, {batch, hidden});
  const auto sequence = [&](const std::optional<Dim>& width) {
    return x && width ? std::optional<Shape>(Shape{(*x)[0], (*x)[1], *width}) : std::nullopt;
  };
  const auto state = [&](const std::optional<Dim>& width) {
    return batch && width ? std::optional<Shape>(Shape{*batch, *width}) : std::nullopt;
  };
  c.out(0, c.dtype(0), sequence(outputs));
  c.out(1, c.dtype(0), state(outputs));
  c.out(2, c.dtype(0), state(hidden));
  c.out(3, c.dtype(0), sequence(hidden ? std::optional<Dim>(*hidden * Dim(4)) : std::nullopt));
  c.out(4, c.dtype(0), sequence(hidden));
}

void layer_gradient(GradContext& c) {
  const std::string mode = c.node().get_string("mode", "");
  std::vector<NodeArg*> arguments;
  for (size_t i = 0; i < kOutputs; ++i) arguments.push_back(c.GO(i));
  std::vector<bool> wanted;
  for (size_t i = 0; i < kInputs; ++i) {
    arguments.push_back(i < c.input_count() ? c.I(i) : nullptr);
    wanted.push_back(c.needs(i));
  }
  arguments.push_back(c.O(0));
  if (mode == "lstm" || mode == "gru") arguments.push_back(c.saved("gates"));
  if (mode == "lstm") arguments.push_back(c.saved("cells"));
  Attributes attributes = c.node().attributes();
  attributes["forward_outputs"] = static_cast<int64_t>(kOutputs);
  const auto grads = c.emit_some("ai.ortmodule::RecurrentLayerGrad", arguments, wanted, std::move(attributes));
  for (size_t i = 0; i < c.input_count(); ++i)
    if (grads[i]) c.GI(i, grads[i]);
}

void layer(OpRecord& r) {
  r.input("x")
      .input("w_ih")
      .input("w_hh")
      .optional_input("b_ih")
      .optional_input("b_hh")
      .optional_input("h0")
      .optional_input("c0")
      .optional_input("w_hr");
}

void attributes(OpRecord& r) {
  r.required_attr("mode", AttrKind::kString).attr("reverse", AttrKind::kInt).attr("batch_first", AttrKind::kInt);
}

}  // namespace

// Shapes: layer.h. mode: lstm, gru, tanh or relu.
ORTMODULE_OP("ai.ortmodule", RecurrentLayer, 1)
    .apply(layer)
    .output("y", Presence::kOptional)
    .output("h_n", Presence::kOptional)
    .output("c_n", Presence::kOptional)
    .saved("gates")
    .saved("cells")
    .apply(attributes)
    .infer(infer_layer)
    .grad({"x", "w_ih", "w_hh", "b_ih", "b_hh", "h0", "c0", "w_hr"}, layer_gradient)
    .body(recurrent_layer_body);

ORTMODULE_OP("ai.ortmodule", RecurrentLayerGrad, 1)
    .optional_input("dy")
    .optional_input("dh_n")
    .optional_input("dc_n")
    .apply(layer)
    .input("y")
    .optional_input("gates")
    .optional_input("cells")
    .output("dx", Presence::kOptional)
    .output("dw_ih", Presence::kOptional)
    .output("dw_hh", Presence::kOptional)
    .output("db_ih", Presence::kOptional)
    .output("db_hh", Presence::kOptional)
    .output("dh0", Presence::kOptional)
    .output("dc0", Presence::kOptional)
    .output("dw_hr", Presence::kOptional)
    .apply(attributes)
    .required_attr("forward_outputs", AttrKind::kInt)
    .infer([](InferContext& c) {
      for (size_t i = 0; i < kInputs; ++i)
        if (c.wants(i)) c.same_as(i, kOutputs + i);
    })
    .not_differentiable()
    .body(recurrent_layer_grad_body);

}  // namespace ortmodule

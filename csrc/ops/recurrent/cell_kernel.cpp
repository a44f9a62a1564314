#include "ops/recurrent/cell.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cctype>

#include "base/status.h"

namespace ortmodule {
namespace {

// Parameters come in two lists that functions without a parameter do not draw from.
class Parameters {
 public:
  Parameters(const Node& node, const char* name) {
    const AttributeValue* value = node.find_attribute(name);
    if (const auto* list = value ? std::get_if<std::vector<double>>(value) : nullptr) values_ = *list;
  }
  double next(double fallback) { return at_ < values_.size() ? values_[at_++] : fallback; }

 private:
  std::vector<double> values_;
  size_t at_ = 0;
};

Activation activation(const Node& node, std::string name, Parameters& alphas, Parameters& betas) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  using T = const at::Tensor&;
  if (name == "relu") return [](T x) { return at::relu(x); };
  if (name == "tanh") return [](T x) { return at::tanh(x); };
  if (name == "sigmoid") return [](T x) { return at::sigmoid(x); };
  if (name == "softplus") return [](T x) { return at::softplus(x); };
  if (name == "softsign") return [](T x) { return x.div(x.abs().add(1)); };
  if (name == "leakyrelu") return [a = alphas.next(0.01)](T x) { return at::leaky_relu(x, a); };
  if (name == "elu") return [a = alphas.next(1)](T x) { return at::elu(x, a); };
  if (name == "thresholdedrelu") return [a = alphas.next(1)](T x) { return at::threshold(x, a, 0); };
  const bool pair = name == "affine" || name == "scaledtanh" || name == "hardsigmoid";
  ORTMODULE_CHECK_GRAPH(pair, "[", node.op(), "] unknown activation '", name, "' (", node.describe(), ")");
  const bool hard = name == "hardsigmoid";
  const double a = alphas.next(hard ? 0.2 : 1), b = betas.next(hard ? 0.5 : name == "affine" ? 0 : 1);
  if (hard) return [a, b](T x) { return at::clamp(at::add(at::mul(x, a), b), 0, 1); };
  if (name == "affine") return [a, b](T x) { return at::add(at::mul(x, a), b); };
  return [a, b](T x) { return at::mul(at::tanh(at::mul(x, b)), a); };
}

}  // namespace

std::vector<Activation> activations_of(const Node& node, const std::vector<std::string>& defaults) {
  const size_t directions = node.get_string("direction", "forward") == "bidirectional" ? 2 : 1;
  std::vector<std::string> names = node.get_strings("activations");
  if (names.empty())
    for (size_t d = 0; d < directions; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
  ORTMODULE_CHECK_GRAPH(names.size() == directions * defaults.size(), "[", node.op(), "] expected ",
                        directions * defaults.size(), " activations, got ", names.size(), " (", node.describe(), ")");
  const double clip = node.get_float("clip", 0);
  Parameters alphas(node, "activation_alpha"), betas(node, "activation_beta");
  std::vector<Activation> out;
  for (const std::string& name : names) {
    Activation f = activation(node, name, alphas, betas);
    if (clip > 0) f = [f, clip](const at::Tensor& x) { return f(at::clamp(x, -clip, clip)); };
    out.push_back(std::move(f));
  }
  return out;
}

RecurrentLayer::RecurrentLayer(const Node& node, int64_t gates, size_t states, const std::vector<std::string>& defaults)
    : name("[" + node.op() + "] (" + node.describe() + ")"),
      gates(gates),
      state_count(states),
      forward(node.get_string("direction", "forward") != "reverse"),
      reverse(node.get_string("direction", "forward") != "forward"),
      batch_first(node.get_int("layout", 0) != 0),
      functions(activations_of(node, defaults)) {}

std::vector<at::Tensor> RecurrentLayer::run(const std::vector<at::Tensor>& inputs, const Cell& cell) const {
  const auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : at::Tensor(); };
  const at::Tensor x = batch_first ? input(0).transpose(0, 1) : input(0), &w = inputs[1], &r = inputs[2];
  const at::Tensor b = input(3), lengths = input(4), peepholes = input(5 + state_count);
  const int64_t directions = forward && reverse ? 2 : 1, hidden = r.size(2), steps = x.size(0), batch = x.size(1);
  ORTMODULE_CHECK(w.size(0) == directions && r.size(0) == directions && w.size(1) == gates * hidden &&
                      r.size(1) == gates * hidden && w.size(2) == x.size(2),
                  kRuntime, name, " X ", x.sizes(), ", W ", w.sizes(), " and R ", r.sizes(), " do not fit");
  ORTMODULE_CHECK(!b.defined() || (b.dim() == 2 && b.size(0) == directions && b.size(1) == 2 * gates * hidden),
                  kRuntime, name, " B should be of ", directions, " x ", 2 * gates * hidden, ", got ", b.sizes());
  at::Tensor alive;  // [seq, batch, 1]
  if (lengths.defined()) {
    ORTMODULE_CHECK(lengths.dim() == 1 && lengths.size(0) == batch, kRuntime, name, " expected ", batch,
                    " sequence_lens, got ", lengths.sizes());
    alive = at::arange(steps, lengths.options()).unsqueeze(1).lt(lengths.unsqueeze(0)).unsqueeze(2);
  }
  const at::Tensor zeros = at::zeros({batch, hidden}, x.options());

  std::vector<at::Tensor> sequences;
  std::vector<std::vector<at::Tensor>> last(state_count);
  for (int64_t d = 0; d < directions; ++d) {
    const bool backwards = reverse && d == directions - 1;
    DirectionWeights weights{w[d], r[d], at::Tensor(), peepholes.defined() ? peepholes[d] : at::Tensor(),
                             functions.data() + static_cast<size_t>(d) * functions.size() / directions};
    at::Tensor input_bias;
    if (b.defined()) {
      const at::Tensor row = b[d];
      input_bias = row.narrow(0, 0, gates * hidden);
      weights.bias = row.narrow(0, gates * hidden, gates * hidden);
    }
    const at::Tensor projected = at::linear(x, weights.w, input_bias);
    States state;
    for (size_t s = 0; s < state_count; ++s) {
      at::Tensor initial = input(5 + s);
      if (initial.defined() && batch_first) initial = initial.transpose(0, 1);
      ORTMODULE_CHECK(!initial.defined() || (initial.dim() == 3 && initial.size(0) == directions &&
                                             initial.size(1) == batch && initial.size(2) == hidden),
                      kRuntime, name, " an initial state has the wrong shape ", initial.sizes());
      state.push_back(initial.defined() ? initial[d] : zeros);
    }
    std::vector<at::Tensor> outputs(steps);
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t t = backwards ? steps - 1 - i : i;
      States next = cell(weights, projected[t], state);
      outputs[t] = next[0];
      if (alive.defined()) {
        // A sequence that has ended keeps its state and gives zeros.
        outputs[t] = at::where(alive[t], next[0], zeros);
        for (size_t s = 0; s < state_count; ++s) next[s] = at::where(alive[t], next[s], state[s]);
      }
      state = std::move(next);
    }
    sequences.push_back(steps ? at::stack(outputs, 0) : at::zeros({0, batch, hidden}, x.options()));
    for (size_t s = 0; s < state_count; ++s) last[s].push_back(state[s]);
  }
  // [seq, directions, batch, hidden]
  std::vector<at::Tensor> out{at::stack(sequences, 1)};
  if (batch_first) out[0] = out[0].permute({2, 0, 1, 3});
  for (auto& states : last) out.push_back(at::stack(states, batch_first ? 1 : 0));
  return out;
}

}  // namespace ortmodule

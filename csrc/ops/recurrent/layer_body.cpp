// RecurrentLayer and its gradient as Scans: one over the steps, one back over them.
//
// Not the standard's LSTM, GRU and RNN: what backward needs from inside they do not give, and outputs cannot be
// projected. The products over all steps stand outside of the Scans.
#include "ops/recurrent/layer_body.h"

#include <memory>

#include "graph/subgraph.h"
#include "records/body_formula.h"

namespace ortmodule {
namespace {

// The subgraph of a Scan while it is written. States are declared first, then slices, then captured values.
class Step {
 public:
  Step(BodyContext& outer, bool batch_first, bool reverse)
      : outer_(outer), graph_(std::make_shared<Graph>("step")), axis_(batch_first), reverse_(reverse) {
    graph_->opsets() = outer.node().graph().opsets();
  }

  NodeArg* state(const char* name, NodeArg* first) { return formal(name, first, states_); }
  NodeArg* slice(const char* name, NodeArg* whole) { return formal(name, whole, slices_); }
  NodeArg* captured(const char* name, NodeArg* value) {
    names_.push_back(name);
    return formal(name, value, captured_);
  }
  NodeArg* emit(const char* op, const std::vector<NodeArg*>& inputs, Attributes attributes = {}) {
    return graph_->add_node("", op, inputs, {""}, std::move(attributes))->output(0);
  }
  std::vector<NodeArg*> split(NodeArg* x, size_t parts) {
    return graph_
        ->add_node("", "Split", {x}, std::vector<std::string>(parts),
                   {{"axis", int64_t{-1}}, {"num_outputs", static_cast<int64_t>(parts)}})
        ->outputs();
  }
  NodeArg* add(NodeArg* a, NodeArg* b) { return emit("Add", {a, b}); }
  NodeArg* sub(NodeArg* a, NodeArg* b) { return emit("Sub", {a, b}); }
  NodeArg* mul(NodeArg* a, NodeArg* b) { return emit("Mul", {a, b}); }
  NodeArg* matmul(NodeArg* a, NodeArg* b) { return emit("MatMul", {a, b}); }
  NodeArg* from_one(NodeArg* x) { return sub(one(x), x); }
  NodeArg* sigmoid_slope(NodeArg* y) { return mul(y, from_one(y)); }  // y (1 - y)
  NodeArg* tanh_slope(NodeArg* y) { return sub(one(y), mul(y, y)); }  // 1 - y^2
  NodeArg* concat(const std::vector<NodeArg*>& xs) { return emit("Concat", xs, {{"axis", int64_t{-1}}}); }
  // Outputs in order: the next states, then what is stacked.
  void out(NodeArg* value) { graph_->add_output(emit("Identity", {value})); }

  std::vector<NodeArg*> scan() {
    std::vector<NodeArg*> inputs = states_;
    inputs.insert(inputs.end(), slices_.begin(), slices_.end());
    inputs.insert(inputs.end(), captured_.begin(), captured_.end());
    const size_t stacked = graph_->outputs().size() - states_.size();
    const auto all = [](int64_t value, size_t count) { return std::vector<int64_t>(count, value); };
    return outer_.emit_n("Scan", inputs, graph_->outputs().size(),
                         {{"body", graph_},
                          {"num_scan_inputs", static_cast<int64_t>(slices_.size())},
                          {"scan_input_axes", all(axis_, slices_.size())},
                          {"scan_input_directions", all(reverse_, slices_.size())},
                          {"scan_output_axes", all(axis_, stacked)},
                          {"scan_output_directions", all(reverse_, stacked)},
                          {kCapturedAttribute, names_}});
  }

 private:
  NodeArg* formal(const char* name, NodeArg* outside, std::vector<NodeArg*>& list) {
    list.push_back(outside);
    return graph_->add_input(name, {outside->type().dtype, std::nullopt});
  }
  NodeArg* one(NodeArg*) { return graph_->constant(TensorData::scalar(outer_.in(0)->type().dtype, 1)); }

  BodyContext& outer_;
  std::shared_ptr<Graph> graph_;
  int64_t axis_, reverse_;
  std::vector<NodeArg*> states_, slices_, captured_;
  std::vector<std::string> names_;
};

// What both bodies know of the node; `first` is the slot of x.
struct Layer {
  Layer(BodyContext& c, size_t first) : c(c), f(c), mode(c.node().get_string("mode", "")), first(first) {}
  NodeArg* in(size_t i) const { return c.in(first + i); }
  bool lstm() const { return mode == "lstm"; }
  bool gru() const { return mode == "gru"; }
  bool reverse() const { return c.node().get_int("reverse", 0) != 0; }
  bool batch_first() const { return c.node().get_int("batch_first", 0) != 0; }
  int64_t time_axis() const { return batch_first(); }
  // A first state, or zeros of [batch, columns of w].
  NodeArg* state(size_t slot, NodeArg* w) {
    if (in(slot)) return in(slot);
    const int64_t batch = batch_first() ? 0 : 1;
    return f.filled(f.concat({f.shape(in(0), batch, batch + 1), f.shape(w, 1, 2)}), 0, in(0)->type().dtype);
  }
  NodeArg* h0() { return state(5, in(2)); }
  NodeArg* c0() { return state(6, in(7) ? in(7) : in(2)); }

  BodyContext& c;
  BodyFormula f;
  std::string mode;
  size_t first;
};

// What each step began with: the first state, then `all` without its last step.
NodeArg* shifted(Layer& l, NodeArg* first, NodeArg* all) {
  BodyContext& c = l.c;
  const int64_t axis = l.time_axis();
  NodeArg* begin = l.f.unsqueeze(first, {axis});
  if (l.reverse())
    return l.f.concat({c.emit("Slice", {all, c.ints({1}), c.ints({INT64_MAX}), c.ints({axis})}), begin}, axis);
  return l.f.concat({begin, c.emit("Slice", {all, c.ints({0}), c.ints({-1}), c.ints({axis})})}, axis);
}

NodeArg* rows(Layer& l, NodeArg* x) { return l.c.emit("Flatten", {x}, {{"axis", int64_t{2}}}); }

}  // namespace

void recurrent_layer_body(BodyContext& c) {
  Layer l(c, 0);
  BodyFormula& f = l.f;
  NodeArg* input = f.matmul(l.in(0), f.transpose(l.in(1), {1, 0}));
  if (l.in(3)) input = f.add(input, l.gru() ? l.in(3) : f.add(l.in(3), l.in(4)));
  Step s(c, l.batch_first(), l.reverse());
  NodeArg* h = s.state("h", l.h0());
  NodeArg* cell = l.lstm() ? s.state("c", l.c0()) : nullptr;
  NodeArg* from_x = s.slice("from_x", input);
  NodeArg* product = s.matmul(h, s.captured("w_hh", f.transpose(l.in(2), {1, 0})));
  if (l.gru()) {
    if (l.in(4)) product = s.add(product, s.captured("b_hh", l.in(4)));
    const auto x = s.split(from_x, 3), p = s.split(product, 3);
    NodeArg *r = s.emit("Sigmoid", {s.add(x[0], p[0])}), *z = s.emit("Sigmoid", {s.add(x[1], p[1])});
    NodeArg* n = s.emit("Tanh", {s.add(x[2], s.mul(r, p[2]))});
    h = s.add(n, s.mul(z, s.sub(h, n)));
    s.out(h);
    s.out(h);
    s.out(s.concat({r, z, n, p[2]}));
  } else if (l.lstm()) {
    const auto parts = s.split(s.add(from_x, product), 4);
    NodeArg *i = s.emit("Sigmoid", {parts[0]}), *forget = s.emit("Sigmoid", {parts[1]});
    NodeArg *g = s.emit("Tanh", {parts[2]}), *o = s.emit("Sigmoid", {parts[3]});
    cell = s.add(s.mul(forget, cell), s.mul(i, g));
    h = s.mul(o, s.emit("Tanh", {cell}));
    if (l.in(7)) h = s.matmul(h, s.captured("w_hr", f.transpose(l.in(7), {1, 0})));
    s.out(h);
    s.out(cell);
    s.out(h);
    s.out(s.concat({i, forget, g, o}));
    s.out(cell);
  } else {
    h = s.emit(l.mode == "relu" ? "Relu" : "Tanh", {s.add(from_x, product)});
    s.out(h);
    s.out(h);
  }
  const auto results = s.scan();
  const auto give = [&](size_t slot, NodeArg* value) {
    if (slot < c.node().outputs().size()) c.out(slot, value);
  };
  // The last states, then y, gates and cells.
  const size_t states = l.lstm() ? 2 : 1;
  for (size_t i = 0; i < states; ++i) give(1 + i, results[i]);
  for (size_t i = states; i < results.size(); ++i) give(i == states ? 0 : 2 + i - states, results[i]);
}

void recurrent_layer_grad_body(BodyContext& c) {
  Layer l(c, 3);
  BodyFormula& f = l.f;
  const DType dtype = l.in(0)->type().dtype;
  const bool lstm = l.lstm(), gru = l.gru(), projected = l.in(7) != nullptr;
  const auto or_zeros = [&](NodeArg* grad, NodeArg* like) { return grad ? grad : f.filled(f.shape(like), 0, dtype); };
  NodeArg *y = c.in(11), *gates = c.in(12), *cells = c.in(13);
  NodeArg *h0 = l.h0(), *c0 = lstm ? l.c0() : nullptr, *earlier = shifted(l, h0, y);
  Step s(c, l.batch_first(), !l.reverse());
  NodeArg* dh = s.state("dh", or_zeros(c.in(1), h0));
  NodeArg* dc = lstm ? s.state("dc", or_zeros(c.in(2), c0)) : nullptr;
  NodeArg* total = s.add(dh, s.slice("dy", or_zeros(c.in(0), y)));
  const auto w_hh = [&] { return s.captured("w_hh", l.in(2)); };
  if (lstm) {
    const auto g = s.split(s.slice("gates", gates), 4);
    NodeArg *t = s.emit("Tanh", {s.slice("c", cells)}), *before = s.slice("c_before", shifted(l, c0, cells));
    NodeArg* dhidden = projected ? s.matmul(total, s.captured("w_hr", l.in(7))) : total;
    NodeArg* d = s.add(dc, s.mul(s.mul(dhidden, g[3]), s.tanh_slope(t)));
    NodeArg* dgates =
        s.concat({s.mul(s.mul(d, g[2]), s.sigmoid_slope(g[0])), s.mul(s.mul(d, before), s.sigmoid_slope(g[1])),
                  s.mul(s.mul(d, g[0]), s.tanh_slope(g[2])), s.mul(s.mul(dhidden, t), s.sigmoid_slope(g[3]))});
    s.out(s.matmul(dgates, w_hh()));
    s.out(s.mul(d, g[1]));
    s.out(dgates);
    if (projected) s.out(total);
  } else if (gru) {
    const auto g = s.split(s.slice("gates", gates), 4);
    NodeArg *r = g[0], *z = g[1], *n = g[2], *before = s.slice("h_before", earlier);
    NodeArg* dn = s.mul(s.mul(total, s.from_one(z)), s.tanh_slope(n));
    NodeArg* dz = s.mul(s.mul(total, s.sub(before, n)), s.sigmoid_slope(z));
    NodeArg* dr = s.mul(s.mul(dn, g[3]), s.sigmoid_slope(r));
    NodeArg* dproduct = s.concat({dr, dz, s.mul(dn, r)});
    s.out(s.add(s.mul(total, z), s.matmul(dproduct, w_hh())));
    s.out(dproduct);
    s.out(s.concat({dr, dz, dn}));
  } else {
    NodeArg* h = s.slice("y", y);
    NodeArg* slope = l.mode == "relu" ? s.emit("Sign", {h}) : s.tanh_slope(h);
    NodeArg* dgates = s.mul(total, slope);
    s.out(s.matmul(dgates, w_hh()));
    s.out(dgates);
  }
  const auto results = s.scan();
  const size_t states = lstm ? 2 : 1;
  NodeArg *from_product = results[states], *from_input = gru ? results[2] : from_product;
  const auto weight = [&](NodeArg* d, NodeArg* x) { return f.matmul(f.transpose(rows(l, d), {1, 0}), rows(l, x)); };
  if (c.wants(0)) c.out(0, f.matmul(from_input, l.in(1)));
  if (c.wants(1)) c.out(1, weight(from_input, l.in(0)));
  if (c.wants(2)) c.out(2, weight(from_product, earlier));
  if (c.wants(3)) c.out(3, f.sum(from_input, {0, 1}, false));
  if (c.wants(4)) c.out(4, f.sum(from_product, {0, 1}, false));
  if (c.wants(5)) c.out(5, results[0]);
  if (c.wants(6)) c.out(6, results[1]);
  if (c.wants(7)) {
    NodeArg* o = c.emit(
        "Slice", {gates, f.c.emit("Mul", {f.shape(cells, 2, 3), c.ints({3})}), c.ints({INT64_MAX}), c.ints({2})});
    c.out(7, weight(results[3], f.mul(o, f.unary("Tanh", cells))));
  }
}

}  // namespace ortmodule

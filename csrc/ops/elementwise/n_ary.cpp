// Elementwise operators of any number of operands: Sum, Mean, Min, Max. Sum is what the gradient builder accumulates
// with.
#include "base/status.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void n_ary(OpRecord& r) {
  r.variadic_input("data").output("result").traits(kElementwise | kCheap).infer([](InferContext& c) {
    if (c.input_count() == 0) c.error("at least one input is needed");
    std::optional<Shape> shape;
    if (c.shape(0)) shape = *c.shape(0);
    for (size_t i = 1; i < c.input_count(); ++i) {
      if (c.dtype(i) != c.dtype(0))
        c.error(str("inputs should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(i))));
      shape = c.broadcast(shape ? &*shape : nullptr, c.shape(i));
    }
    c.out(0, c.dtype(0), std::move(shape));
  });
}

template <Opcode op>
bool chain(FusionContext& c) {
  int result = c.in(0);
  for (size_t i = 1; i < c.input_count(); ++i) result = c.emit(op, result, c.in(i));
  c.out(0, result);
  return true;
}

ORTMODULE_OP("", Sum, 1)
    .apply(n_ary)
    .grad({"data"},
          [](GradContext& c) {
            for (size_t i = 0; i < c.input_count(); ++i)
              if (c.needs(i)) c.GI(i, c.reduce_to(c.GO(0), c.I(i)));
          })
    .fuses(chain<Opcode::kAdd>);

ORTMODULE_OP("", Mean, 1).apply(n_ary).grad({"data"}, [](GradContext& c) {
  NodeArg* share = c.emit("Div", {c.GO(0), c.scalar(static_cast<double>(c.input_count()), c.GO(0))});
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.needs(i)) c.GI(i, c.reduce_to(share, c.I(i)));
});

// dy where `value` is the extreme of the pair, half of it where both are equal, as in PyTorch.
NodeArg* share(GradContext& c, NodeArg* dy, NodeArg* half, NodeArg* tie, const char* loses, NodeArg* value,
               NodeArg* other) {
  NodeArg* kept = c.emit("Where", {tie, half, dy});
  return c.emit("Where", {c.emit(loses, {value, other}), c.scalar(0, dy), kept});
}

// More than two operands are taken as a chain of pairs from the left; `op` recomputes the chain's prefixes.
void extreme_grad(GradContext& c, const char* op, const char* loses) {
  const size_t n = c.input_count();
  std::vector<NodeArg*> prefix{c.I(0)};
  for (size_t i = 1; i + 1 < n; ++i) prefix.push_back(c.emit(op, {prefix.back(), c.I(i)}));
  NodeArg* dy = c.GO(0);
  for (size_t i = n - 1; i > 0; --i) {
    NodeArg *left = prefix[i - 1], *right = c.I(i);
    NodeArg* tie = c.emit("Equal", {left, right});
    NodeArg* half = c.emit("Mul", {dy, c.scalar(0.5, dy)});
    if (c.needs(i)) c.GI(i, c.reduce_to(share(c, dy, half, tie, loses, right, left), right));
    dy = c.reduce_to(share(c, dy, half, tie, loses, left, right), left);
  }
  c.GI(0, dy);
}

ORTMODULE_OP("", Max, 1)
    .apply(n_ary)
    .grad({"data"}, [](GradContext& c) { extreme_grad(c, "Max", "Less"); })
    .fuses(chain<Opcode::kMax>);
ORTMODULE_OP("", Min, 1)
    .apply(n_ary)
    .grad({"data"}, [](GradContext& c) { extreme_grad(c, "Min", "Greater"); })
    .fuses(chain<Opcode::kMin>);

}  // namespace
}  // namespace ortmodule

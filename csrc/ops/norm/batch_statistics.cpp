// Batch norm in parts, for devices whose programs have the rest: statistics, then an affine map of each channel; the
// sums over the gradient, then a combination of it and x. transforms/split_batch_norm.h makes them of one node.
//
// The maps are programs' instructions, so that ReLU, residual sums and casts behind them cost no pass over memory.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

using Sizes = std::optional<Shape>;

Sizes channels_of(const InferContext& c, size_t scale) {
  return c.shape(scale) ? Sizes(*c.shape(scale)) : std::nullopt;
}

// [C, 1, ..]: what broadcasts to x [N, C, ..].
Sizes broadcast_channels(InferContext& c, size_t x, size_t scale) {
  const Shape* whole = c.shape(x);
  const Shape* channels = c.shape_of_rank(scale, 1);
  if (!whole || !channels) return std::nullopt;
  if (whole->size() < 2) c.error(str("x should have at least 2 dimensions, got ", shape_text(*whole)));
  Shape out(whole->size() - 1, Dim(1));
  out[0] = (*channels)[0];
  return out;
}

DType statistics_type(DType x) { return is_reduced_floating(x) ? DType::kFloat : x; }

void infer_statistics(InferContext& c) {
  const DType type = statistics_type(c.dtype(0));
  c.out(0, type, channels_of(c, 1));
  c.out(1, type, channels_of(c, 1));
  c.out(2, type, broadcast_channels(c, 0, 1));
  c.out(3, type, broadcast_channels(c, 0, 1));
  c.same_as(4, 3);
  c.same_as(5, 4);
}

void infer_sums(InferContext& c) {
  const DType type = statistics_type(c.dtype(1));
  c.same_as(0, 2);
  c.same_as(1, 2);
  for (size_t i = 2; i < 5; ++i) c.out(i, type, broadcast_channels(c, 1, 2));
}

// x as [N, C, rest] and numbers [C] beside it.
struct Channels {
  Channels(BodyFormula& f, NodeArg* x)
      : f(f), type(statistics_type(x->type().dtype)), x(view(x)), rest(static_cast<size_t>(f.rank(x)) - 2) {}
  NodeArg* view(NodeArg* t) { return f.cast(f.reshape(t, {0, 0, -1}), type); }
  NodeArg* column(NodeArg* numbers) { return f.unsqueeze(f.cast(numbers, type), {1}); }
  NodeArg* numbers(NodeArg* column) { return f.reshape(column, {-1}); }
  NodeArg* broadcast(NodeArg* column) {
    std::vector<int64_t> sizes(rest + 1, 1);
    sizes[0] = -1;
    return f.reshape(column, sizes);
  }
  NodeArg* count() { return f.cast(f.div(f.unary("Size", x), f.unary("Size", f.mean(x, {0, 2}))), type); }

  BodyFormula& f;
  DType type;
  NodeArg* x;
  size_t rest;  // axes behind the channels
};

void statistics_body(BodyContext& c) {
  BodyFormula f(c);
  Channels of(f, c.in(0));
  NodeArg* mean = f.mean(of.x, {0, 2});
  NodeArg* centered = f.sub(of.x, mean);
  NodeArg* variance = f.mean(f.mul(centered, centered), {0, 2});
  NodeArg* shifted = f.add(variance, c.node().get_float("epsilon", 1e-5));
  NodeArg* invstd = f.unary("Reciprocal", f.unary("Sqrt", shifted));
  NodeArg* factor = f.mul(of.column(c.in(1)), invstd);
  c.out(0, of.numbers(mean));
  c.out(1, of.numbers(invstd));
  c.out(2, of.broadcast(factor));
  c.out(3, of.broadcast(f.sub(of.column(c.in(2)), f.mul(mean, factor))));
  const double momentum = c.node().get_float("momentum", 0.1);
  const auto moved = [&](size_t running, NodeArg* column) {
    NodeArg* now = f.cast(of.numbers(column), c.in(running)->type().dtype);
    return f.add(f.mul(c.in(running), 1 - momentum), f.mul(now, momentum));
  };
  if (c.wants(4)) c.out(4, moved(3, mean));
  if (c.wants(5)) c.out(5, moved(4, f.div(f.mul(variance, of.count()), f.add(of.count(), -1))));
}

void sums_body(BodyContext& c) {
  BodyFormula f(c);
  Channels of(f, c.in(1));
  NodeArg *dy = of.view(c.in(0)), *mean = of.column(c.in(3)), *invstd = of.column(c.in(4));
  if (c.node().inputs().size() > 5 && c.in(5)) {
    NodeArg* y = f.add(f.mul(of.x, of.column(of.numbers(c.in(5)))), of.column(of.numbers(c.in(6))));
    dy = f.keep(f.greater(y, 0), dy);
  }
  NodeArg* plain = f.sum(dy, {0, 2});
  NodeArg* along = f.sum(f.mul(dy, f.sub(of.x, mean)), {0, 2});
  const DType narrow = c.in(2)->type().dtype;
  if (c.wants(0)) c.out(0, f.cast(of.numbers(f.mul(along, invstd)), narrow));
  if (c.wants(1)) c.out(1, f.cast(of.numbers(plain), narrow));
  NodeArg* dy_factor = f.mul(of.column(c.in(2)), invstd);
  NodeArg* x_factor = f.mul(f.mul(f.mul(dy_factor, f.mul(invstd, invstd)), f.div(along, of.count())), -1);
  NodeArg* shift = f.add(f.mul(dy_factor, f.div(plain, of.count())), f.mul(x_factor, mean));
  c.out(2, of.broadcast(dy_factor));
  c.out(3, of.broadcast(x_factor));
  c.out(4, of.broadcast(f.mul(shift, -1)));
}

// In the type of the numbers per channel, and rounded once.
void affine_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = c.in(1)->type().dtype;
  c.out(0, f.cast(f.add(f.mul(f.cast(c.in(0), type), c.in(1)), c.in(2)), c.in(0)->type().dtype));
}

void combination_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = c.in(2)->type().dtype;
  NodeArg *dy = f.mul(f.cast(c.in(0), type), c.in(2)), *x = f.mul(f.cast(c.in(1), type), c.in(3));
  c.out(0, f.cast(f.add(f.add(dy, x), c.in(4)), c.in(1)->type().dtype));
}

}  // namespace

// x[N, C, ..]; the others [C]. `factor` and `shift` [C, 1, ..] give x * factor + shift = (x - mean) * invstd * scale +
// bias. Running statistics as in BatchNormTraining.
ORTMODULE_OP("ai.ortmodule", BatchNormStatistics, 1)
    .input("x")
    .input("scale")
    .input("bias")
    .input("running_mean")
    .input("running_var")
    .output("mean")
    .output("invstd")
    .output("factor")
    .output("shift")
    .output("new_mean", Presence::kOptional)
    .output("new_var", Presence::kOptional)
    .attr("epsilon", AttrKind::kFloat)
    .attr("momentum", AttrKind::kFloat)
    .infer(infer_statistics)
    .traits(kStatistics)
    .body(statistics_body)
    .not_differentiable();

// y = x * factor + shift
ORTMODULE_OP("ai.ortmodule", BatchNormAffine, 1)
    .input("x")
    .input("factor")
    .input("shift")
    .output("y")
    .infer(infer_same)
    .traits(kElementwise | kCheap)
    .passes(2)
    .body(affine_body)
    .fuses([](FusionContext& c) {
      c.out(0, c.emit(Opcode::kAdd, c.emit(Opcode::kMul, c.in(0), c.in(1)), c.in(2)));
      return true;
    })
    .not_differentiable();

// What BatchNormTrainingGrad sums up. dx = dy * dy_factor + x * x_factor + shift. With `factor` and `y_shift`, those of
// the forward, dy is the gradient of ReLU's result and counts where x * factor + y_shift > 0.
ORTMODULE_OP("ai.ortmodule", BatchNormSums, 1)
    .input("dy")
    .input("x")
    .input("scale")
    .input("mean")
    .input("invstd")
    .optional_input("factor")
    .optional_input("y_shift")
    .output("dscale", Presence::kOptional)
    .output("dbias", Presence::kOptional)
    .output("dy_factor")
    .output("x_factor")
    .output("shift")
    .infer(infer_sums)
    .body(sums_body)
    .not_differentiable();

ORTMODULE_OP("ai.ortmodule", BatchNormInputGrad, 1)
    .input("dy")
    .input("x")
    .input("dy_factor")
    .input("x_factor")
    .input("shift")
    .output("dx")
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .traits(kElementwise)
    .passes(2)
    .body(combination_body)
    .fuses([](FusionContext& c) {
      const int dy = c.emit(Opcode::kMul, c.in(0), c.in(2)), x = c.emit(Opcode::kMul, c.in(1), c.in(3));
      c.out(0, c.emit(Opcode::kAdd, dy, c.emit(Opcode::kAdd, x, c.in(4))));
      return true;
    })
    .not_differentiable();

}  // namespace ortmodule

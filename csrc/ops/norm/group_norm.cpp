// GroupNormalization and InstanceNormalization: normalisation over groups of channels and the spatial dimensions.
//
// InstanceNormalization is the case of one channel per group and shares kernels and gradient; num_groups = 0 means it.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_group_norm(InferContext& c) {
  c.same_as(0, 0);
  const Shape* x = c.shape(0);
  std::optional<Shape> stats;
  if (x) {
    if (x->size() < 2) c.error(str("X should have at least 2 dimensions, got ", shape_text(*x)));
    const int64_t groups = c.attr_int("num_groups", 0);
    const Dim& channels = (*x)[1];
    if (groups > 0 && channels.is_known() && channels.value() % groups != 0)
      c.error(str(channels.value(), " channels do not divide into ", groups, " groups"));
    for (size_t i = 1; i < 3; ++i) {
      const Shape* s = c.shape_of_rank(i, 1);
      if (s && (*s)[0].is_known() && channels.is_known() && (*s)[0] != channels)
        c.error(
            str("expected ", i == 1 ? "scale" : "bias", " of ", channels.text(), " elements, got ", (*s)[0].text()));
    }
    stats = Shape{(*x)[0], groups > 0 ? Dim(groups) : channels};
  }
  c.out(1, is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0), stats);
  c.out(2, is_reduced_floating(c.dtype(0)) ? DType::kFloat : c.dtype(0), std::move(stats));
}

void group_norm_gradient(GradContext& c) {
  const auto grads =
      c.emit_some("ai.ortmodule::GroupNormalizationGrad", {c.GO(0), c.I(0), c.saved("mean"), c.saved("rstd"), c.I(1)},
                  {c.needs(0), c.needs(1), c.needs(2)}, {{"num_groups", c.node().get_int("num_groups", 0)}});
  for (size_t i = 0; i < 3; ++i) c.GI(i, grads[i]);
}

// One scale and bias per group once: each is repeated for the channels of its group.
void upgrade_group_norm(UpgradeContext& c) {
  const auto repeated = [&](NodeArg* per_group, NodeArg* sizes) {
    NodeArg* column = c.emit("Unsqueeze", {per_group, c.ints({1})});
    return c.emit("Reshape", {c.emit("Expand", {column, sizes}), c.ints({-1})});
  };
  NodeArg* channels = c.emit("Shape", {c.I(0)}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  NodeArg* sizes =
      c.emit("Concat", {c.ints({1}), c.emit("Div", {channels, c.emit("Shape", {c.I(1)})})}, {{"axis", int64_t{0}}});
  NodeArg *scale = repeated(c.I(1), sizes), *bias = repeated(c.I(2), sizes);
  c.rewrite({c.I(0), scale, bias});
}

// [N, groups, rest], with 0 groups for one per channel.
NodeArg* in_groups(BodyFormula& f, NodeArg* x) { return f.reshape(x, {0, f.c.node().get_int("num_groups", 0), -1}); }

// x * scale + bias with one number per channel; bias may be null.
NodeArg* per_channel(BodyFormula& f, NodeArg* x, NodeArg* scale, NodeArg* bias) {
  NodeArg* y = f.mul(f.reshape(x, {0, 0, -1}), f.unsqueeze(scale, {1}));
  return f.reshape_like(bias ? f.add(y, f.unsqueeze(bias, {1})) : y, x);
}

// For a portable graph whose backward reads the statistics, outputs that the standard's operators lack.
void group_norm_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = is_reduced_floating(c.in(0)->type().dtype) ? DType::kFloat : c.in(0)->type().dtype;
  NodeArg* x = in_groups(f, f.cast(c.in(0), type));
  NodeArg* mean = f.mean(x, {2});
  NodeArg* centered = f.sub(x, mean);
  NodeArg* variance = f.mean(f.mul(centered, centered), {2});
  NodeArg* rstd = f.unary("Reciprocal", f.unary("Sqrt", f.add(variance, c.node().get_float("epsilon", 1e-5))));
  NodeArg* xhat = f.reshape_like(f.mul(centered, rstd), c.in(0));
  c.out(0, f.cast(per_channel(f, xhat, f.cast(c.in(1), type), f.cast(c.in(2), type)), c.in(0)->type().dtype));
  if (c.wants(1)) c.out(1, f.squeeze(mean, {2}));
  if (c.wants(2)) c.out(2, f.squeeze(rstd, {2}));
}

void group_norm_like(OpRecord& op) {
  op.output("Y")
      .saved("mean")
      .saved("rstd")
      .attr("epsilon", AttrKind::kFloat)
      .infer(infer_group_norm)
      .body(group_norm_body);
}

void group_norm_grad_body(BodyContext& c) {
  BodyFormula f(c);
  const DType type = c.in(2)->type().dtype, result = c.in(1)->type().dtype, of_scale = c.in(4)->type().dtype;
  NodeArg *dy = f.cast(c.in(0), type), *scale = f.cast(c.in(4), type);
  NodeArg *mean = f.unsqueeze(c.in(2), {2}), *rstd = f.unsqueeze(c.in(3), {2});
  NodeArg* xhat = f.mul(f.sub(in_groups(f, f.cast(c.in(1), type)), mean), rstd);
  if (c.wants(0)) {
    NodeArg* g = in_groups(f, per_channel(f, dy, scale, nullptr));
    c.out(0, f.cast(f.reshape_like(normalization_dx(f, g, xhat, rstd, {2}, true), c.in(1)), result));
  }
  NodeArg* rows = f.reshape(dy, {0, 0, -1});
  if (c.wants(1)) {
    NodeArg* product = f.mul(rows, f.reshape(f.reshape_like(xhat, c.in(1)), {0, 0, -1}));
    c.out(1, f.cast(f.sum(product, {0, 2}, false), of_scale));
  }
  if (c.wants(2)) c.out(2, f.cast(f.sum(rows, {0, 2}, false), of_scale));
}

}  // namespace

// X[N, C, ...], scale[C], bias[C]
ORTMODULE_OP("", GroupNormalization, 21)
    .older(18, 20, upgrade_group_norm)
    .input("X")
    .input("scale")
    .input("bias")
    .apply(group_norm_like)
    .required_attr("num_groups", AttrKind::kInt)
    .attr("stash_type", AttrKind::kInt)
    .grad({"X", "scale", "bias"}, group_norm_gradient);

ORTMODULE_OP("", InstanceNormalization, 1)
    .input("input")
    .input("scale")
    .input("B")
    .apply(group_norm_like)
    .grad({"input", "scale", "B"}, group_norm_gradient);

ORTMODULE_OP("ai.ortmodule", GroupNormalizationGrad, 1)
    .input("dY")
    .input("X")
    .input("mean")
    .input("rstd")
    .input("scale")
    .output("dX", Presence::kOptional)
    .output("dScale", Presence::kOptional)
    .output("dBias", Presence::kOptional)
    .attr("num_groups", AttrKind::kInt)
    .infer([](InferContext& c) {
      c.same_as(0, 1);
      c.same_as(1, 4);
      c.same_as(2, 4);
    })
    .not_differentiable()
    .body(group_norm_grad_body);

}  // namespace ortmodule

// GroupNormalization and InstanceNormalization: normalisation over groups of channels and the spatial dimensions.
//
// InstanceNormalization is the case of one channel per group and shares kernels and gradient; num_groups = 0 means it.
#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/registry.h"
#include "ops/upgrade.h"

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

void group_norm_like(OpRecord& op) {
  op.output("Y").saved("mean").saved("rstd").attr("epsilon", AttrKind::kFloat).infer(infer_group_norm);
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
    .not_differentiable();

}  // namespace ortmodule

// Dropout in com.microsoft's other forms: behind a softmax, and with a mask of one bit per element.
//
// A bit mask is uint32[ceil(elements / 32)]; bit i of word w belongs to element 32 w + i in row-major order.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_bit_mask(InferContext& c) {
  c.same_as(0, 0);
  const Shape* x = c.shape(0);
  Dim elements(1);
  for (size_t i = 0; x && i < x->size(); ++i) elements = elements * (*x)[i];
  c.out(1, DType::kUInt32, Shape{x ? Dim::floor_div(elements + Dim(31), Dim(32)) : c.fresh_dim()});
}

void random_controls(OpRecord& r) {
  r.host_input("ratio", Presence::kOptional)
      .host_input("training_mode", Presence::kOptional)
      .output("output")
      .output("mask", Presence::kOptional)
      .attr("seed", AttrKind::kInt)
      .traits(kRandom)
      .infer(infer_bit_mask);
}

}  // namespace

ORTMODULE_OP("com.microsoft", BitmaskDropout, 1)
    .input("data")
    .apply(random_controls)
    .grad({"data"}, [](GradContext& c) {
      c.GI(0, c.emit("com.microsoft::BitmaskDropoutGrad", {c.GO(0), c.O(1), c.I(1), c.I(2)}));
    });

// dropout(data + bias) + residual
ORTMODULE_OP("com.microsoft", BitmaskBiasDropout, 1)
    .input("data")
    .input("bias")
    .optional_input("residual")
    .apply(random_controls)
    .grad({"data", "bias", "residual"}, [](GradContext& c) {
      if (c.needs(0) || c.needs(1)) {
        NodeArg* dx = c.emit("com.microsoft::BitmaskDropoutGrad", {c.GO(0), c.O(1), c.I(3), c.I(4)});
        c.GI(0, dx);
        if (c.needs(1)) c.GI(1, c.reduce_to(dx, c.I(1)));
      }
      c.GI(2, c.GO(0));
    });

ORTMODULE_OP("com.microsoft", BitmaskDropoutGrad, 1)
    .input("dy")
    .input("mask")
    .host_input("ratio", Presence::kOptional)
    .host_input("training_mode", Presence::kOptional)
    .output("dx")
    .infer(infer_same)
    .not_differentiable();

// dropout(softmax(data + bias)), with the mask and the softmax; the dimensions from `axis` on are one.
ORTMODULE_OP("com.microsoft", BiasSoftmaxDropout, 1)
    .input("data")
    .input("bias")
    .host_input("ratio", Presence::kOptional)
    .output("Y")
    .output("dropout_mask")
    .output("softmax_Y")
    .attr("axis", AttrKind::kInt)
    .required_attr("is_inner_broadcast", AttrKind::kInt)
    .attr("seed", AttrKind::kInt)
    .traits(kRandom)
    .infer([](InferContext& c) {
      c.same_as(0, 0);
      infer_mask(c, 1, 0);
      c.same_as(2, 0);
    })
    .grad({"data", "bias"}, [](GradContext& c) {
      if (!c.GO(0) && !c.GO(2)) return;
      const Shape* x = c.I(0)->type().shape ? &*c.I(0)->type().shape : nullptr;
      const int64_t axis = c.node().get_int("axis", 1);
      // The gradient operators normalize over one axis.
      const bool flat = !x || (axis != -1 && axis != static_cast<int64_t>(x->size()) - 1);
      const auto matrix = [&](NodeArg* v) { return flat ? c.emit("Flatten", {v}, {{"axis", axis}}) : v; };
      NodeArg *y = matrix(c.O(2)), *dx = nullptr;
      const Attributes last{{"axis", int64_t{-1}}};
      if (c.GO(0)) dx = c.emit("com.microsoft::SoftmaxDropoutGrad", {matrix(c.GO(0)), matrix(c.O(1)), y, c.I(2)}, last);
      if (c.GO(2)) {
        NodeArg* part = c.emit("ai.ortmodule::SoftmaxGrad", {matrix(c.GO(2)), y}, last);
        dx = dx ? c.emit("Add", {dx, part}) : part;
      }
      if (flat) dx = c.emit("Reshape", {dx, c.sizes_of(c.I(0))}, {{"allowzero", int64_t{1}}});
      c.GI(0, dx);
      if (c.needs(1)) c.GI(1, c.reduce_to(dx, c.I(1)));
    });

}  // namespace ortmodule

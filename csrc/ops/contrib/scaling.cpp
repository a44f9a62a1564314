// Small operators around the gradients and steps of ONNX Runtime's training graphs, in com.microsoft: scaling, finite
// checks, accumulation, ordering tokens, and the forms of standard operators that they use.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

DType type_attribute(InferContext& c, const char* name, DType fallback) {
  const auto type = static_cast<DType>(c.attr_int(name, 0));
  return type == DType::kUndefined ? fallback : type;
}

void infer_flag(InferContext& c) { c.out(0, DType::kBool, Shape{}); }

void infer_scaled_copies(InferContext& c) {
  for (size_t i = 0; i < 3; ++i) c.same_as(i, 0);
}

// input times scale0, scale1 and scale2.
ORTMODULE_OP("com.microsoft", BatchScale, 1)
    .input("input")
    .output("output_0")
    .output("output_1")
    .output("output_2", Presence::kOptional)
    .required_attr("scale0", AttrKind::kFloat)
    .required_attr("scale1", AttrKind::kFloat)
    .attr("scale2", AttrKind::kFloat)
    .infer(infer_scaled_copies)
    .grad({"input"}, [](GradContext& c) {
      NodeArg* sum = nullptr;
      for (size_t i = 0; i < 3; ++i) {
        if (!c.GO(i)) continue;
        NodeArg* part = c.emit("Mul", {c.GO(i), c.scalar(c.node().get_float("scale" + std::to_string(i), 1), c.GO(i))});
        sum = sum ? c.emit("Add", {sum, part}) : part;
      }
      c.GI(0, sum);
    });

// input * scale, or input / scale with scale_down.
ORTMODULE_OP("com.microsoft", Scale, 1)
    .input("input")
    .input("scale")
    .output("output")
    .attr("scale_down", AttrKind::kInt)
    .infer(infer_same)
    .no_grad({"scale"})
    .grad({"input"},
          [](GradContext& c) { c.GI(0, c.emit("com.microsoft::Scale", {c.GO(0), c.I(1)}, c.node().attributes())); });

// Every X times S as the type `to`; one flat vector of all with fuse_outputs.
ORTMODULE_OP("com.microsoft", MixedPrecisionScale, 1)
    .input("S")
    .variadic_input("X")
    .output("Y", Presence::kVariadic)
    .required_attr("to", AttrKind::kInt)
    .attr("fuse_outputs", AttrKind::kInt)
    .infer([](InferContext& c) {
      const DType type = type_attribute(c, "to", DType::kFloat);
      if (c.attr_int("fuse_outputs", 0)) return c.out(0, type, c.fresh_shape(1));
      for (size_t i = 0; i + 1 < c.input_count(); ++i)
        c.out(i, type, c.shape(i + 1) ? std::optional<Shape>(*c.shape(i + 1)) : std::nullopt);
    })
    .not_differentiable();

ORTMODULE_OP("com.microsoft", IsFinite, 1)
    .input("X")
    .output("Y")
    .infer([](InferContext& c) { infer_mask(c, 0, 0); })
    .traits(kElementwise)
    .not_differentiable();

// Whether no element of any input is infinite or not a number (only the one with isinf_only, the other with
// isnan_only).
ORTMODULE_OP("com.microsoft", IsAllFinite, 1)
    .variadic_input("input")
    .output("output")
    .attr("isinf_only", AttrKind::kInt)
    .attr("isnan_only", AttrKind::kInt)
    .infer(infer_flag)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", All, 1).input("X").output("Y").infer(infer_flag).not_differentiable();

// True when everything in front of it has run.
ORTMODULE_OP("com.microsoft", Group, 1)
    .variadic_input("input_tokens")
    .output("done")
    .infer(infer_flag)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", ZeroGradient, 1)
    .input("old_gradient")
    .input("reset_signal")
    .output("zero_gradient")
    .infer(infer_same)
    .not_differentiable();

// old_sum + value; old_sum again where update_signal is false.
ORTMODULE_OP("com.microsoft", InPlaceAccumulator, 1)
    .input("old_sum")
    .input("value")
    .host_input("update_signal", Presence::kOptional)
    .output("new_sum")
    .infer(infer_same)
    .not_differentiable();

// accumulation_buffer + value, or value alone where overwrite_flag says so.
ORTMODULE_OP("com.microsoft", InPlaceAccumulatorV2, 1)
    .input("accumulation_buffer")
    .input("value")
    .host_input("overwrite_flag", Presence::kOptional)
    .output("updated_flag")
    .output("accumulation_buffer_out", Presence::kOptional)
    .infer([](InferContext& c) {
      c.out(0, DType::kBool, Shape{Dim(1)});
      c.same_as(1, 0);
    })
    .not_differentiable();

// ReduceSum with the axes as an input, as it was before the standard had that.
ORTMODULE_OP("com.microsoft", ReduceSumTraining, 1)
    .input("data")
    .host_input("axes")
    .output("reduced")
    .attr("keepdims", AttrKind::kInt)
    .attr("noop_with_empty_axes", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      const auto axes = c.ints_value(1);
      const bool keep = c.attr_int("keepdims", 1) != 0;
      if (!x || !axes)
        return c.out(0, c.dtype(0), x && keep ? std::optional<Shape>(c.fresh_shape(x->size())) : std::nullopt);
      std::vector<bool> summed(x->size(), axes->empty() && !c.attr_int("noop_with_empty_axes", 0));
      for (const int64_t axis : *axes) summed[c.axis(axis, x->size())] = true;
      Shape y;
      for (size_t i = 0; i < x->size(); ++i) {
        if (!summed[i])
          y.push_back((*x)[i]);
        else if (keep)
          y.push_back(Dim(1));
      }
      c.out(0, c.dtype(0), std::move(y));
    })
    .grad({"data"}, [](GradContext& c) {
      NodeArg* dy = c.GO(0);
      const bool noop = c.node().get_int("noop_with_empty_axes", 0) != 0;
      const NodeArg* axes = c.I(1);
      const bool none = axes->constant() && axes->constant()->elements() == 0;
      if (!c.node().get_int("keepdims", 1) && !none) dy = c.emit("Unsqueeze", {dy, c.I(1)});
      c.GI(0, none && noop ? dy : c.emit("Expand", {dy, c.sizes_of(c.I(0))}));
    });

// Rounds to the quantized numbers quant_min .. quant_max and back. The gradient passes where nothing was clipped: mask.
ORTMODULE_OP("com.microsoft", FakeQuant, 1)
    .input("input")
    .input("scale")
    .input("zero_point")
    .output("output")
    .output("mask", Presence::kOptional)
    .attr("quant_min", AttrKind::kInt)
    .attr("quant_max", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (c.attr_int("quant_min", 0) >= c.attr_int("quant_max", 255))
        c.error("quant_min should be less than quant_max");
      c.same_as(0, 0);
      infer_mask(c, 1, 0);
    })
    .no_grad({"scale", "zero_point"})
    .grad({"input"}, [](GradContext& c) { c.GI(0, c.emit("Mul", {c.GO(0), c.cast(c.O(1), c.GO(0)->type().dtype)})); });

// dY where FakeQuant's mask holds, zero elsewhere.
ORTMODULE_OP("com.microsoft", FakeQuantGrad, 1)
    .input("dY")
    .input("mask")
    .output("dX")
    .infer(infer_same)
    .not_differentiable();

}  // namespace
}  // namespace ortmodule

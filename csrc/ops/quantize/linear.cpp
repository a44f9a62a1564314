// QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.
//
// A quantized tensor has integers or small floats; nothing flows through it. The scale of DequantizeLinear is learned
// like any weight; what trains the rest with quantization in the loop casts (Cast to a float8 type has a gradient).
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

std::optional<Shape> shape_of(const InferContext& c, size_t i) {
  return c.shape(i) ? std::optional<Shape>(*c.shape(i)) : std::nullopt;
}

// Scale and zero point beside the tensor: a number, one per index of the axis, or one per block of the axis.
void check_granularity(InferContext& c) {
  const Shape *x = c.shape(0), *scale = c.shape(1), *zero = c.shape(2);
  const int64_t block = c.attr_int("block_size", 0);
  if (block < 0) c.error(str("block_size should not be negative, got ", block));
  if (scale && zero && scale->size() != zero->size() && scale->size() + zero->size() > 1)
    c.error(str("scale ", shape_text(*scale), " and zero point ", shape_text(*zero), " differ in rank"));
  if (!x || !scale || scale->empty()) return;
  const bool one = scale->size() == 1 && (*scale)[0] == Dim(1);
  if (one) return;
  if (scale->size() != (block ? x->size() : 1))
    c.error(str("a scale of shape ", shape_text(*scale), " does not fit data of shape ", shape_text(*x),
                block ? " in blocks" : ""));
  const size_t axis = x->size() == 1 ? 0 : c.axis(c.attr_int("axis", 1), x->size());
  if (!block && (*scale)[0].is_known() && (*x)[axis].is_known() && (*scale)[0] != (*x)[axis])
    c.error(str("there are ", (*scale)[0].text(), " scales for ", (*x)[axis].text(), " indices of axis ", axis));
}

DType attribute_type(const InferContext& c, const char* name) {
  const int64_t value = c.attr_int(name, 0);
  const auto dtype = static_cast<DType>(value);
  if (value != 0 && (value != static_cast<int32_t>(value) || dtype_name(dtype) == "undefined"))
    c.error(str("attribute '", name, "' names no type: ", value));
  return dtype;
}

void granularity(OpRecord& r) { r.attr("axis", AttrKind::kInt).attr("block_size", AttrKind::kInt); }

ORTMODULE_OP("", QuantizeLinear, 10)
    .input("x")
    .input("y_scale")
    .optional_input("y_zero_point")
    .output("y")
    .apply(granularity)
    .attr("output_dtype", AttrKind::kInt)
    .attr("precision", AttrKind::kInt)
    .attr("saturate", AttrKind::kInt)
    .traits(kElementwise)
    .not_differentiable()
    .infer([](InferContext& c) {
      check_granularity(c);
      attribute_type(c, "precision");
      const DType asked = attribute_type(c, "output_dtype"), zero = c.dtype(2);
      if (asked != DType::kUndefined && zero != DType::kUndefined && asked != zero)
        c.error(str("output_dtype is ", dtype_name(asked), ", but the zero point's type is ", dtype_name(zero)));
      const DType given = asked == DType::kUndefined ? zero : asked;
      c.out(0, given == DType::kUndefined && !c.has(2) ? DType::kUInt8 : given, shape_of(c, 0));
    });

ORTMODULE_OP("", DequantizeLinear, 10)
    .input("x")
    .input("x_scale")
    .optional_input("x_zero_point")
    .output("y")
    .apply(granularity)
    .attr("output_dtype", AttrKind::kInt)
    .traits(kElementwise)
    .no_grad({"x", "x_zero_point"})
    .infer([](InferContext& c) {
      check_granularity(c);
      if (c.has(2) && c.dtype(0) != DType::kUndefined && c.dtype(2) != DType::kUndefined && c.dtype(0) != c.dtype(2))
        c.error(str("x is ", dtype_name(c.dtype(0)), ", its zero point ", dtype_name(c.dtype(2))));
      const DType asked = attribute_type(c, "output_dtype");
      if (asked == DType::kUndefined && c.dtype(1) == DType::kFloat8E8M0)
        c.error("a scale of type float8e8m0 needs the attribute output_dtype");
      c.out(0, asked == DType::kUndefined ? c.dtype(1) : asked, shape_of(c, 0));
    })
    .grad({"x_scale"}, [](GradContext& c) {
      Attributes attributes;
      for (const char* name : {"axis", "block_size"})
        if (const AttributeValue* value = c.node().find_attribute(name)) attributes[name] = *value;
      c.GI(1, c.emit("ai.ortmodule::DequantizeLinearGrad", {c.GO(0), c.I(0), c.I(1), c.I(2)}, std::move(attributes)));
    });

// The sum of dY (x - zero point) over everything that shares a scale.
ORTMODULE_OP("ai.ortmodule", DequantizeLinearGrad, 1)
    .input("dY")
    .input("x")
    .input("x_scale")
    .optional_input("x_zero_point")
    .output("dScale")
    .apply(granularity)
    .traits(kReduction)
    .not_differentiable()
    .infer([](InferContext& c) { c.same_as(0, 2); });

ORTMODULE_OP("", DynamicQuantizeLinear, 11)
    .input("x")
    .output("y")
    .output("y_scale")
    .output("y_zero_point")
    .not_differentiable()
    .infer([](InferContext& c) {
      c.out(0, DType::kUInt8, shape_of(c, 0));
      c.out(1, DType::kFloat, Shape{});
      c.out(2, DType::kUInt8, Shape{});
    });

}  // namespace
}  // namespace ortmodule

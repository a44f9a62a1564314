// Tensors made from sizes or numbers: ConstantOfShape, Range, Constant, EyeLike, RandomUniformLike, RandomNormalLike.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

const TensorData* tensor_attribute(const Node& node, const char* name) {
  const AttributeValue* value = node.find_attribute(name);
  return value ? std::get_if<TensorData>(value) : nullptr;
}

// `value` is a one-element tensor; float zero when absent.
ORTMODULE_OP("", ConstantOfShape, 9)
    .host_input("input")
    .output("output")
    .attr("value", AttrKind::kTensor)
    .traits(kCheap)
    .infer([](InferContext& c) {
      const TensorData* value = tensor_attribute(c.node(), "value");
      if (value && value->elements() != 1) c.error(str("value should hold one element, got ", value->elements()));
      std::optional<Shape> shape;
      if (const auto dims = c.dims_value(0))
        shape = *dims;
      else if (const Shape* length = c.shape(0); length && length->size() == 1 && (*length)[0].is_known())
        shape = c.fresh_shape(static_cast<size_t>((*length)[0].value()));
      c.out(0, value ? value->dtype : DType::kFloat, std::move(shape));
    });

// The number of elements of an integer range; nothing when it depends on the run or the step counts down.
std::optional<Dim> range_size(InferContext& c) {
  const auto start = c.dims_value(0), limit = c.dims_value(1), delta = c.dims_value(2);
  if (!start || !limit || !delta || !is_integer(c.dtype(0))) return std::nullopt;
  if (start->size() != 1 || limit->size() != 1 || delta->size() != 1) return std::nullopt;
  const Dim& step = (*delta)[0];
  const Dim span = (*limit)[0] - (*start)[0];
  if (!step.is_known()) return std::nullopt;
  if (step.value() == 0) c.error("a delta of 0");
  if (step.value() < 0)
    return span.is_known() ? std::optional<Dim>(Dim::max(Dim::floor_div(span + step + Dim(1), step), Dim(0)))
                           : std::nullopt;
  const Dim count = Dim::floor_div(span + step - Dim(1), step);
  // A lone symbol is a size, never negative.
  return count.lone_symbol() ? count : Dim::max(count, Dim(0));
}

ORTMODULE_OP("", Range, 11)
    .host_input("start")
    .host_input("limit")
    .host_input("delta")
    .output("output")
    .traits(kCheap)
    .infer([](InferContext& c) {
      std::optional<Dim> size;
      if (is_integer(c.dtype(0))) size = range_size(c);
      c.out(0, c.dtype(0), Shape{size ? *size : c.fresh_dim()});
    });

// The importer turns these into initializers; the operator exists for graphs that are built by hand.
ORTMODULE_OP("", Constant, 1)
    .output("output")
    .attr("value", AttrKind::kTensor)
    .attr("value_float", AttrKind::kFloat)
    .attr("value_floats", AttrKind::kFloats)
    .attr("value_int", AttrKind::kInt)
    .attr("value_ints", AttrKind::kInts)
    .infer([](InferContext& c) {
      const Node& node = c.node();
      const auto length = [](size_t n) { return Shape{Dim(static_cast<int64_t>(n))}; };
      if (const TensorData* value = tensor_attribute(node, "value"))
        c.out(0, value->dtype, Shape(value->dims.begin(), value->dims.end()));
      else if (node.find_attribute("value_float"))
        c.out(0, DType::kFloat, Shape{});
      else if (const AttributeValue* given = node.find_attribute("value_floats")) {
        const auto* floats = std::get_if<std::vector<double>>(given);
        c.out(0, DType::kFloat, length(floats ? floats->size() : 0));
      } else if (node.find_attribute("value_int"))
        c.out(0, DType::kInt64, Shape{});
      else if (node.find_attribute("value_ints"))
        c.out(0, DType::kInt64, length(node.get_ints("value_ints").size()));
      else
        c.error("one of the attributes value, value_float(s), value_int(s) is needed");
    });

// Output 0 has the input's sizes and the type of the attribute `dtype`, or else the input's.
void like(OpRecord& r) {
  r.input("input").output("output").attr("dtype", AttrKind::kInt).not_differentiable().infer([](InferContext& c) {
    const auto given = static_cast<DType>(c.attr_int("dtype", 0));
    c.out(0, given == DType::kUndefined ? c.dtype(0) : given,
          c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
  });
}

void random_like(OpRecord& r) { r.apply(like).attr("seed", AttrKind::kFloat).traits(kRandom | kShapeOnly); }

ORTMODULE_OP("", RandomUniformLike, 1).apply(random_like).attr("low", AttrKind::kFloat).attr("high", AttrKind::kFloat);

ORTMODULE_OP("", RandomNormalLike, 1).apply(random_like).attr("mean", AttrKind::kFloat).attr("scale", AttrKind::kFloat);

ORTMODULE_OP("", EyeLike, 9).apply(like).attr("k", AttrKind::kInt).traits(kShapeOnly);

}  // namespace
}  // namespace ortmodule

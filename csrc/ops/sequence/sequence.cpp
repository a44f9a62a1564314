// Sequences of tensors: construct, empty, insert, erase, at, length, split and concat.
//
// A sequence's type says the element type alone, so that an element's shape is known at run time only. None of them is
// differentiated: a sequence has no gradient.
#include "base/container_type.h"
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// The element type of sequence input 0; throws for anything else.
DType element(InferContext& c) {
  if (!is_sequence(c.dtype(0)) || is_optional(c.dtype(0)))
    c.error(str("input 0 should be a sequence, got ", dtype_name(c.dtype(0))));
  return element_of(c.dtype(0));
}

void check_tensor(InferContext& c, size_t i, DType element) {
  const DType have = c.dtype(i);
  if (is_container(have) || (have != element && have != DType::kUndefined && element != DType::kUndefined))
    c.error(str("input ", i, " should be a tensor of type ", dtype_name(element), ", got ", dtype_name(have)));
}

ORTMODULE_OP("", SequenceConstruct, 11)
    .variadic_input("inputs")
    .output("output_sequence")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      if (c.input_count() == 0) c.error("takes at least one tensor");
      for (size_t i = 0; i < c.input_count(); ++i) check_tensor(c, i, c.dtype(0));
      c.out(0, sequence_of(c.dtype(0)), std::nullopt);
    });

ORTMODULE_OP("", SequenceEmpty, 11)
    .output("output")
    .attr("dtype", AttrKind::kInt)
    .traits(kTakesContainers)
    .infer([](InferContext& c) {
      const auto dtype = static_cast<DType>(c.attr_int("dtype", static_cast<int64_t>(DType::kFloat)));
      if (dtype == DType::kUndefined || is_container(dtype) || dtype_name(dtype) == "undefined")
        c.error(str("the attribute 'dtype' names no type: ", static_cast<int64_t>(dtype)));
      c.out(0, sequence_of(dtype), std::nullopt);
    });

ORTMODULE_OP("", SequenceInsert, 11)
    .input("input_sequence")
    .input("tensor")
    .host_input("position", Presence::kOptional)
    .output("output_sequence")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      check_tensor(c, 1, element(c));
      c.out(0, c.dtype(0), std::nullopt);
    });

ORTMODULE_OP("", SequenceErase, 11)
    .input("input_sequence")
    .host_input("position", Presence::kOptional)
    .output("output_sequence")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, sequence_of(element(c)), std::nullopt); });

ORTMODULE_OP("", SequenceAt, 11)
    .input("input_sequence")
    .host_input("position")
    .output("tensor")
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, element(c), std::nullopt); });

ORTMODULE_OP("", SequenceLength, 11)
    .input("input_sequence")
    .output("length")
    .traits(kTakesContainers | kHostOutput)
    .not_differentiable()
    .infer([](InferContext& c) {
      element(c);
      c.out(0, DType::kInt64, Shape{});
    });

ORTMODULE_OP("", SplitToSequence, 11)
    .input("input")
    .host_input("split", Presence::kOptional)
    .output("output_sequence")
    .attr("axis", AttrKind::kInt)
    .attr("keepdims", AttrKind::kInt)
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) {
      check_tensor(c, 0, c.dtype(0));
      if (const Shape* shape = c.shape(0)) c.axis(c.attr_int("axis", 0), shape->size());
      c.out(0, sequence_of(c.dtype(0)), std::nullopt);
    });

ORTMODULE_OP("", ConcatFromSequence, 11)
    .input("input_sequence")
    .output("concat_result")
    .required_attr("axis", AttrKind::kInt)
    .attr("new_axis", AttrKind::kInt)
    .traits(kTakesContainers)
    .not_differentiable()
    .infer([](InferContext& c) { c.out(0, element(c), std::nullopt); });

}  // namespace
}  // namespace ortmodule

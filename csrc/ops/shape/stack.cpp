// ai.ortmodule::Stack and Unstack, torch.stack and torch.unbind: each is the other's gradient.
//
// One operator rather than an Unsqueeze of each part and a Concat, because weights are stacked by the hundred, and a
// view of each costs more than the few numbers in it.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_stack(InferContext& c) {
  if (c.input_count() == 0) c.error("at least one input is needed");
  const Shape* known = nullptr;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (c.dtype(i) != c.dtype(0))
      c.error(str("inputs should have one type, got ", dtype_name(c.dtype(0)), " and ", dtype_name(c.dtype(i))));
    const Shape* x = c.shape(i);
    if (!known) known = x;
    if (x && x->size() != known->size())
      c.error(str("shapes ", shape_text(*known), " and ", shape_text(*x), " differ in rank"));
    for (size_t k = 0; x && k < x->size(); ++k)
      if ((*x)[k].is_known() && (*known)[k].is_known() && (*x)[k] != (*known)[k])
        c.error(str("shapes ", shape_text(*known), " and ", shape_text(*x), " differ"));
  }
  if (!known) return c.out(0, c.dtype(0), std::nullopt);
  Shape out = *known;
  const size_t axis = c.axis(c.attr_int("axis", 0), out.size() + 1);
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis), Dim(static_cast<int64_t>(c.input_count())));
  c.out(0, c.dtype(0), std::move(out));
}

void infer_unstack(InferContext& c) {
  const size_t count = c.node().outputs().size();
  std::optional<Shape> part;
  if (const Shape* x = c.shape(0)) {
    const size_t axis = c.axis(c.attr_int("axis", 0), x->size());
    const Dim& size = (*x)[axis];
    if (size.is_known() && size.value() < static_cast<int64_t>(count))
      c.error(str("the axis has size ", size.text(), ", the node has ", count, " outputs"));
    part = *x;
    part->erase(part->begin() + static_cast<std::ptrdiff_t>(axis));
  }
  for (size_t i = 0; i < count; ++i) c.out(i, c.dtype(0), part);
}

void stack_body(BodyContext& c) {
  const int64_t axis = c.node().get_int("axis", 0);
  std::vector<NodeArg*> parts;
  for (NodeArg* in : c.node().inputs()) parts.push_back(c.emit("Unsqueeze", {in, c.ints({axis})}));
  c.out(0, c.emit("Concat", parts, {{"axis", axis}}));
}

void unstack_body(BodyContext& c) {
  const int64_t axis = c.node().get_int("axis", 0);
  for (size_t i = 0; i < c.node().outputs().size(); ++i)
    if (c.wants(i)) c.out(i, c.emit("Gather", {c.in(0), c.scalar_int(static_cast<int64_t>(i))}, {{"axis", axis}}));
}

}  // namespace

// Tensors of one shape -> the same along a new axis of the result.
ORTMODULE_OP("ai.ortmodule", Stack, 1)
    .variadic_input("inputs")
    .output("stacked")
    .required_attr("axis", AttrKind::kInt)
    .infer(infer_stack)
    .grad({"inputs"},
          [](GradContext& c) {
            std::vector<bool> wanted;
            for (size_t i = 0; i < c.input_count(); ++i) wanted.push_back(c.needs(i));
            const Attributes axis{{"axis", c.node().get_int("axis", 0)}};
            const auto parts = c.emit_some("ai.ortmodule::Unstack", {c.GO(0)}, wanted, axis);
            for (size_t i = 0; i < parts.size(); ++i)
              if (parts[i]) c.GI(i, parts[i]);
          })
    .body(stack_body);

// x -> its parts along an axis, which they do not have; parts behind the last output are left out.
ORTMODULE_OP("ai.ortmodule", Unstack, 1)
    .input("x")
    .output("parts", Presence::kVariadic)
    .required_attr("axis", AttrKind::kInt)
    .traits(kView | kCheap)
    .infer(infer_unstack)
    .not_differentiable()
    .body(unstack_body);

}  // namespace ortmodule

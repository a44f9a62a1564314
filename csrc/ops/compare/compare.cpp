// Comparisons, boolean logic, IsNaN and IsInf. All of them give booleans, so nothing has a gradient.
#include "base/status.h"
#include "records/fusion_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void compare(OpRecord& r) {
  r.input("A").input("B").output("C").infer(infer_compare).traits(kElementwise | kCheap).not_differentiable();
}

void logic(OpRecord& r) {
  r.input("A").input("B").output("C").traits(kElementwise | kCheap).not_differentiable().infer([](InferContext& c) {
    if (c.dtype(0) != DType::kUndefined && c.dtype(0) != DType::kBool)
      c.error(str("expected booleans, got ", dtype_name(c.dtype(0))));
    infer_compare(c);
  });
}

void test(OpRecord& r) {
  r.input("X").output("Y").traits(kElementwise | kCheap).not_differentiable().infer([](InferContext& c) {
    c.out(0, DType::kBool, c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
  });
}

ORTMODULE_OP("", Equal, 7).apply(compare).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kEqual>);
ORTMODULE_OP("", Less, 7).apply(compare).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kLess>);
ORTMODULE_OP("", LessOrEqual, 12).apply(compare).fuses(instruction<Opcode::kLessEqual>);
ORTMODULE_OP("", Greater, 7).apply(compare).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kGreater>);
ORTMODULE_OP("", GreaterOrEqual, 12).apply(compare).fuses(instruction<Opcode::kGreaterEqual>);
ORTMODULE_OP("", And, 7).apply(logic).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kAnd>);
ORTMODULE_OP("", Or, 7).apply(logic).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kOr>);
ORTMODULE_OP("", Xor, 7).apply(logic).older(1, 6, upgrade_axis_broadcast).fuses(instruction<Opcode::kXor>);
ORTMODULE_OP("", Not, 1).apply(test).fuses(instruction<Opcode::kNot>);
ORTMODULE_OP("", IsNaN, 9).apply(test);
ORTMODULE_OP("", IsInf, 10).apply(test).attr("detect_negative", AttrKind::kInt).attr("detect_positive", AttrKind::kInt);

}  // namespace
}  // namespace ortmodule

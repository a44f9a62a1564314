// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift: integers only, so nothing has a gradient.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void check_integer(InferContext& c) {
  if (c.dtype(0) != DType::kUndefined && !is_integer(c.dtype(0)))
    c.error(str("expected integers, got ", dtype_name(c.dtype(0))));
}

void bitwise(OpRecord& r) {
  r.input("A").input("B").output("C").traits(kElementwise | kCheap).not_differentiable().infer([](InferContext& c) {
    check_integer(c);
    infer_broadcast(c);
  });
}

ORTMODULE_OP("", BitwiseAnd, 18).apply(bitwise);
ORTMODULE_OP("", BitwiseOr, 18).apply(bitwise);
ORTMODULE_OP("", BitwiseXor, 18).apply(bitwise);
ORTMODULE_OP("", BitwiseNot, 18)
    .input("X")
    .output("Y")
    .traits(kElementwise | kCheap)
    .not_differentiable()
    .infer([](InferContext& c) {
      check_integer(c);
      infer_same(c);
    });

// Amounts below zero or of the element's width and more leave what the sign bit fills in: -1 or 0.
ORTMODULE_OP("", BitShift, 11).apply(bitwise).required_attr("direction", AttrKind::kString);

}  // namespace
}  // namespace ortmodule

// BitwiseAnd, BitwiseOr, BitwiseXor and BitwiseNot: integers only, so nothing has a gradient.
#include "base/status.h"
#include "ops/infer_context.h"
#include "ops/registry.h"

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

}  // namespace
}  // namespace ortmodule

// ai.ortmodule::RotateHalf: the halves of each row changed over, the new first one negated: [-x2, x1] for [x1, x2].
// It is a quarter turn of the pairs (x1[i], x2[i]), what models with rotary position embeddings multiply by the sine.
//
// One operator rather than Split, Neg and Concat, because the fusion pass can then make rotary embedding and its
// gradient one pass over memory each (transforms/fuse_rotate_half.cpp puts it in). RotaryEmbedding takes its caches for
// half a row; here the sine may be anything.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_rotate(InferContext& c) {
  if (const Shape* x = c.shape(0)) {
    if (x->empty()) c.error("expected rank 1 or more, got 0");
    if (const Dim& last = x->back(); last.is_known() && last.value() % 2 != 0)
      c.error(str("expected rows of even size, got ", last.value()));
  }
  c.same_as(0, 0);
}

// [.., N], N even -> the same.
ORTMODULE_OP("ai.ortmodule", RotateHalf, 1)
    .input("X")
    .output("Y")
    .traits(kCheap)
    .infer(infer_rotate)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("Neg", {c.emit("ai.ortmodule::RotateHalf", {c.GO(0)})})); })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      const int64_t last = f.rank(c.in(0)) - 1;
      NodeArg *two = c.ints({2}), *half_size = c.emit("Div", {f.shape(c.in(0), last), two});
      NodeArg* sizes = f.concat({f.shape(c.in(0), 0, last), two, half_size});
      NodeArg* halves = c.emit("Reshape", {c.in(0), sizes}, {{"allowzero", int64_t{1}}});
      const auto half = [&](int64_t which) {
        return c.emit("Gather", {halves, c.scalar_int(which)}, {{"axis", last}});
      };
      c.out(0, f.concat({f.unary("Neg", half(1)), half(0)}, -1));
    })
    // Tiles of a program hold whole rows of a size that is known to be even.
    .fuses([](FusionContext& c) {
      const Dim& last = c.node().output(0)->type().shape->back();
      if (!last.is_known() || last.value() < 2) return false;
      c.out(0, c.emit(Opcode::kRotateHalf, c.in(0)));
      return true;
    });

}  // namespace
}  // namespace ortmodule

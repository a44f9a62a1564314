// RotaryEmbedding: pairs of a head's elements turn by an angle that the position gives. The standard's operator and
// com.microsoft's, which differ in the order of the inputs.
//
// The derivative is the rotation by the negative angle: the same operator with -sin. The caches' gradients, which
// hardly anything asks for, come from a second forward.
#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"

namespace ortmodule {
namespace {

void infer_rotary(InferContext& c) {
  if (const Shape* x = c.shape(0); x && x->size() != 3 && x->size() != 4)
    c.error(str("expected rank 3 or 4, got ", x->size()));
  const int64_t heads = c.attr_int("num_heads", 0), dim = c.attr_int("rotary_embedding_dim", 0);
  if (heads < 0 || dim < 0 || dim % 2 != 0) c.error("num_heads and rotary_embedding_dim should not be negative or odd");
  c.same_as(0, 0);
}

void attributes(OpRecord& r) {
  r.output("Y")
      .attr("interleaved", AttrKind::kInt)
      .attr("num_heads", AttrKind::kInt)
      .attr("rotary_embedding_dim", AttrKind::kInt)
      .infer(infer_rotary);
}

template <size_t cos, size_t sin>
void gradient(GradContext& c, const char* op, const char* rerun) {
  if (c.needs(cos) || c.needs(sin)) return rerun_gradient(c, rerun);
  std::vector<NodeArg*> inputs = c.node().inputs();
  inputs[0] = c.GO(0);
  inputs[sin] = c.emit("Neg", {c.I(sin)});
  c.GI(0, c.emit(op, inputs, c.node().attributes()));
}

// Of whole heads [batch, heads, seq, size] whose halves are pairs, with caches per token.
void body(BodyContext& c) {
  const auto& x = c.in(0)->type().shape;
  if (!x || x->size() != 4 || c.node().input(3) || c.node().get_int("interleaved", 0) != 0 ||
      c.node().get_int("rotary_embedding_dim", 0) != 0)
    return;
  BodyFormula f(c);
  const std::vector<NodeArg*> halves =
      c.emit_n("Split", {c.in(0)}, 2, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{2}}});
  NodeArg *cos = f.unsqueeze(c.in(1), {1}), *sin = f.unsqueeze(c.in(2), {1});
  c.out(0, f.concat({f.sub(f.mul(halves[0], cos), f.mul(halves[1], sin)),
                     f.add(f.mul(halves[1], cos), f.mul(halves[0], sin))},
                    -1));
}

}  // namespace

ORTMODULE_OP("", RotaryEmbedding, 23)
    .input("X")
    .input("cos_cache")
    .input("sin_cache")
    .optional_input("position_ids")
    .apply(attributes)
    .no_grad({"position_ids"})
    .grad({"X", "cos_cache", "sin_cache"},
          [](GradContext& c) { gradient<1, 2>(c, "RotaryEmbedding", "ai.ortmodule::RotaryEmbeddingGrad"); })
    .body(body);
ORTMODULE_OP("ai.ortmodule", RotaryEmbeddingGrad, 1).apply(rerun_record);

// position_ids: [1], the first position of every sequence, or [batch, seq].
ORTMODULE_OP("com.microsoft", RotaryEmbedding, 1)
    .input("input")
    .input("position_ids")
    .input("cos_cache")
    .input("sin_cache")
    .apply(attributes)
    .attr("is_packed_batching", AttrKind::kInt)
    .attr("scale", AttrKind::kFloat)
    .no_grad({"position_ids"})
    .grad({"input", "cos_cache", "sin_cache"}, [](GradContext& c) {
      gradient<2, 3>(c, "com.microsoft::RotaryEmbedding", "ai.ortmodule::ContribRotaryEmbeddingGrad");
    });
ORTMODULE_OP("ai.ortmodule", ContribRotaryEmbeddingGrad, 1).apply(rerun_record);

}  // namespace ortmodule

// Draws: RandomNormal, RandomUniform, Bernoulli, Multinomial. No gradient flows through a draw.
//
// Without the attribute `seed` the numbers come from torch's default generator, which torch.manual_seed governs.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void drawn(OpRecord& r) {
  r.output("output").attr("dtype", AttrKind::kInt).attr("seed", AttrKind::kFloat).traits(kRandom).not_differentiable();
}

DType dtype_attribute(InferContext& c, DType fallback) {
  const auto given = static_cast<DType>(c.attr_int("dtype", static_cast<int64_t>(fallback)));
  return given == DType::kUndefined ? fallback : given;
}

void sized(OpRecord& r) {
  r.apply(drawn).required_attr("shape", AttrKind::kInts).infer([](InferContext& c) {
    Shape shape;
    for (int64_t n : c.node().get_ints("shape")) {
      if (n < 0) c.error(str("a negative size ", n));
      shape.emplace_back(n);
    }
    c.out(0, dtype_attribute(c, DType::kFloat), std::move(shape));
  });
}

ORTMODULE_OP("", RandomNormal, 1).apply(sized).attr("mean", AttrKind::kFloat).attr("scale", AttrKind::kFloat);
ORTMODULE_OP("", RandomUniform, 1).apply(sized).attr("low", AttrKind::kFloat).attr("high", AttrKind::kFloat);

// One with the probability that the input holds, else zero.
ORTMODULE_OP("", Bernoulli, 15).input("input").apply(drawn).infer([](InferContext& c) {
  c.out(0, dtype_attribute(c, c.dtype(0)), c.shape(0) ? std::optional<Shape>(*c.shape(0)) : std::nullopt);
});

// Rows of unnormalized log-probabilities [batch, classes] -> classes [batch, sample_size], drawn with replacement.
ORTMODULE_OP("", Multinomial, 7)
    .input("input")
    .apply(drawn)
    .attr("sample_size", AttrKind::kInt)
    .infer([](InferContext& c) {
      const int64_t samples = c.attr_int("sample_size", 1);
      if (samples < 1) c.error(str("sample_size should be positive, got ", samples));
      const DType type = dtype_attribute(c, DType::kInt32);
      if (type != DType::kInt32 && type != DType::kInt64)
        c.error(str("dtype should be int32 or int64, got ", dtype_name(type)));
      const Shape* x = c.shape_of_rank(0, 2);
      c.out(0, type, Shape{x ? (*x)[0] : c.fresh_dim(), Dim(samples)});
    });

}  // namespace
}  // namespace ortmodule

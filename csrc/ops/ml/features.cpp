// Feature operators: ai.onnx.ml's ArrayFeatureExtractor and Binarizer, and TfIdfVectorizer.
#include <algorithm>

#include "base/near_numbers.h"
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

// X at the positions Y of its last axis; a vector counts as a matrix of one row.
ORTMODULE_OP("ai.onnx.ml", ArrayFeatureExtractor, 1)
    .input("X")
    .input("Y")
    .output("Z")
    .no_grad({"Y"})
    .infer([](InferContext& c) {
      const Shape *x = c.shape(0), *y = c.shape(1);
      std::optional<Shape> out;
      if (x) {
        if (x->empty()) c.error("X should have an axis");
        out = x->size() == 1 ? Shape{Dim(1), Dim(1)} : *x;
        out->back() = y ? product(*y, 0, y->size()) : c.fresh_dim();
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::ArrayFeatureExtractorGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))}));
    });

ORTMODULE_OP("ai.ortmodule", ArrayFeatureExtractorGrad, 1)
    .input("dZ")
    .input("Y")
    .host_input("sizes")
    .output("dX")
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(2);
      c.out(0, c.dtype(0), dims ? std::optional<Shape>(*dims) : std::nullopt);
    })
    .not_differentiable();

ORTMODULE_OP("ai.onnx.ml", Binarizer, 1)
    .input("X")
    .output("Y")
    .attr("threshold", AttrKind::kFloat)
    .traits(kElementwise)
    .infer(infer_same)
    .not_differentiable();

// Counts of the n-grams of a pool in each row of X; of integers alone, because the engine has no tensors of strings.
ORTMODULE_OP("", TfIdfVectorizer, 9)
    .input("X")
    .output("Y")
    .required_attr("max_gram_length", AttrKind::kInt)
    .required_attr("max_skip_count", AttrKind::kInt)
    .required_attr("min_gram_length", AttrKind::kInt)
    .required_attr("mode", AttrKind::kString)
    .required_attr("ngram_counts", AttrKind::kInts)
    .required_attr("ngram_indexes", AttrKind::kInts)
    .attr("pool_int64s", AttrKind::kInts)
    .attr("pool_strings", AttrKind::kStrings)
    .attr("weights", AttrKind::kFloats)
    .infer([](InferContext& c) {
      const std::vector<int64_t> indexes = c.node().get_ints("ngram_indexes");
      if (indexes.empty()) c.error("ngram_indexes is empty");
      if (!are_near(indexes)) c.error("an entry of ngram_indexes is too large");
      const Dim size(*std::max_element(indexes.begin(), indexes.end()) + 1);
      const Shape* x = c.shape(0);
      if (x && x->size() > 2) c.error(str("X should be [C] or [N, C], got ", shape_text(*x)));
      c.out(0, DType::kFloat,
            !x               ? std::nullopt
            : x->size() == 2 ? std::optional<Shape>(Shape{(*x)[0], size})
                             : std::optional<Shape>(Shape{size}));
    })
    .not_differentiable();

}  // namespace ortmodule

// Shape and Size: what a tensor's sizes are, as int64 in host memory. They never read an element.
#include <algorithm>

#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("", Shape, 1)
    .input("data")
    .output("shape")
    .attr("start", AttrKind::kInt)
    .attr("end", AttrKind::kInt)
    .traits(kHostOutput | kShapeOnly)
    .not_differentiable()
    .infer([](InferContext& c) {
      if (!c.shape(0)) {
        c.out(0, DType::kInt64, c.fresh_shape(1));
        return;
      }
      const Shape& x = *c.shape(0);
      const auto rank = static_cast<int64_t>(x.size());
      const auto bound = [rank](int64_t i) { return std::min(std::max<int64_t>(i < 0 ? i + rank : i, 0), rank); };
      const int64_t start = bound(c.attr_int("start", 0)), end = std::max(start, bound(c.attr_int("end", rank)));
      c.out(0, DType::kInt64, Shape{Dim(end - start)});
      c.known(0, std::vector<Dim>(x.begin() + start, x.begin() + end));
    });

ORTMODULE_OP("", Size, 1)
    .input("data")
    .output("size")
    .traits(kHostOutput | kShapeOnly)
    .not_differentiable()
    .infer([](InferContext& c) {
      c.out(0, DType::kInt64, Shape{});
      if (c.shape(0)) c.known(0, {product(*c.shape(0), 0, c.shape(0)->size())});
    });

}  // namespace
}  // namespace ortmodule

// Type rules that the losses share: the labels' shape, and what is left of it after the reduction.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "records/infer_context.h"

namespace ortmodule {

// Shape of the labels: scores[N, C, d...] without C.
inline std::optional<Shape> label_shape(InferContext& c, size_t scores) {
  const Shape* s = c.shape(scores);
  if (!s) return std::nullopt;
  if (s->size() < 2) c.error(str("scores should be [N, C, d...], got ", shape_text(*s)));
  Shape out = *s;
  out.erase(out.begin() + 1);
  return out;
}

inline void check_labels(InferContext& c, const std::optional<Shape>& expected) {
  if (!is_integer(c.dtype(1))) c.error(str("labels should be integers, got ", dtype_name(c.dtype(1))));
  const Shape* labels = c.shape(1);
  if (labels && expected && labels->size() != expected->size())
    c.error(str("labels should have shape ", shape_text(*expected), ", got ", shape_text(*labels)));
}

inline void infer_reduced(InferContext& c, const std::optional<Shape>& labels) {
  const std::string reduction = c.node().get_string("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    c.error(str("reduction should be mean, sum or none, got '", reduction, "'"));
  c.out(0, c.dtype(0), reduction == "none" ? labels : Shape{});
}

}  // namespace ortmodule

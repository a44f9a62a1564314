// The shape of a matrix product with NumPy's rules, for every operator that is one.
#pragma once

#include "base/status.h"
#include "records/infer_context.h"

namespace ortmodule {

// Of inputs `left` and `right`; nothing when a rank is unknown.
inline std::optional<Shape> matmul_shape(InferContext& c, size_t left, size_t right) {
  const Shape *a = c.shape(left), *b = c.shape(right);
  if (!a || !b) return std::nullopt;
  if (a->empty() || b->empty()) c.error("A and B should have at least one dimension");
  const Dim &ka = a->back(), &kb = b->size() == 1 ? (*b)[0] : (*b)[b->size() - 2];
  if (ka.is_known() && kb.is_known() && ka != kb)
    c.error(str("A and B do not fit: shapes ", shape_text(*a), " and ", shape_text(*b)));
  const Shape batch_a(a->begin(), a->size() > 1 ? a->end() - 2 : a->begin());
  const Shape batch_b(b->begin(), b->size() > 1 ? b->end() - 2 : b->begin());
  Shape out = *c.broadcast(&batch_a, &batch_b);
  if (a->size() > 1) out.push_back((*a)[a->size() - 2]);
  if (b->size() > 1) out.push_back(b->back());
  return out;
}

}  // namespace ortmodule

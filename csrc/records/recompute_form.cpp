#include "records/recompute_form.h"

namespace ortmodule {

double count_elements(const Shape& shape, const SizeOf& size) {
  double count = 1;
  for (const Dim& dim : shape) count *= size(dim);
  return count;
}

}  // namespace ortmodule

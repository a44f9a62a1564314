// What Resize computes, as numbers: which axes change, and for each of them which input elements an output
// element is made of. Interpolation is separable, so one table per axis says everything; the gradient is the same
// tables transposed. No tensors here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortmodule {

enum class ResizeMode { kNearest, kLinear, kCubic };
enum class Coordinates {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kTfHalfPixelForNearest,
  kTfCropAndResize
};
enum class NearestMode { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil };
enum class AspectPolicy { kStretch, kNotLarger, kNotSmaller };

struct ResizeAttributes {
  ResizeMode mode;
  Coordinates coordinates;
  NearestMode nearest;
  AspectPolicy policy;
  double cubic_a, extrapolation;
  bool antialias, exclude_outside;
  std::vector<int64_t> axes;  // as written; empty: all
  std::string where;          // for messages

  // Of a Resize or ResizeGrad node.
  explicit ResizeAttributes(const Node& node);
  // The axes of a tensor of rank `rank`, not negative.
  std::vector<size_t> axes_of(size_t rank) const;
};

// One axis that changes. `scale` is output over input as the coordinates see it.
struct ResizeAxis {
  size_t axis;
  int64_t in, out;
  double scale;
  double roi_begin, roi_end;
};

// What the operator was given beside X: one of scales and sizes, roi where the coordinates ask for it.
struct ResizeRequest {
  std::vector<double> roi, scales;
  std::vector<int64_t> sizes;
};

// Output size of an axis of `in` elements under a scale.
int64_t resized(int64_t in, double scale);

// The axes that change for an X of these sizes.
std::vector<ResizeAxis> resize_axes(const ResizeAttributes& a, const std::vector<int64_t>& x,
                                    const ResizeRequest& request);

// Output element j is the sum over t < taps of weights[t * out + j] * x[indices[t * out + j]].
struct ResizeTable {
  size_t taps;
  std::vector<int64_t> indices;
  std::vector<double> weights;
  std::vector<int64_t> outside;  // output positions that take the extrapolation value
};
ResizeTable resize_table(const ResizeAttributes& a, const ResizeAxis& axis);

}  // namespace ortmodule

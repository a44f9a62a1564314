// Kernel of NonMaxSuppression. It runs on the host on any device: each choice depends on the ones before.
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/status.h"
#include "kernels/host_doubles.h"
#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

struct Box {
  double y1, x1, y2, x2;  // ordered

  Box(const double* b, bool center) {
    if (center) {
      x1 = b[0] - b[2] / 2;
      x2 = b[0] + b[2] / 2;
      y1 = b[1] - b[3] / 2;
      y2 = b[1] + b[3] / 2;
    } else {
      y1 = std::min(b[0], b[2]);
      x1 = std::min(b[1], b[3]);
      y2 = std::max(b[0], b[2]);
      x2 = std::max(b[1], b[3]);
    }
  }
  double area() const { return (y2 - y1) * (x2 - x1); }
};

bool overlaps(const Box& a, const Box& b, double threshold) {
  const double height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
  const double width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (height <= 0 || width <= 0 || a.area() <= 0 || b.area() <= 0) return false;
  const double shared = height * width;
  return shared / (a.area() + b.area() - shared) > threshold;
}

Kernel make_non_max_suppression(const Node& node) {
  return [center = node.get_int("center_point_box", 0) != 0, limit = HostInts(node, 2), iou = HostDoubles(node, 3),
          least = HostDoubles(node, 4)](KernelContext& c) {
    const at::Tensor boxes = c.in(0).to(c10::kCPU, at::kDouble).contiguous();
    const at::Tensor scores = c.in(1).to(c10::kCPU, at::kDouble).contiguous();
    ORTMODULE_CHECK(boxes.dim() == 3 && boxes.size(2) == 4 && scores.dim() == 3 && scores.size(0) == boxes.size(0) &&
                        scores.size(2) == boxes.size(1),
                    kRuntime, "[NonMaxSuppression] expected boxes [N, B, 4] and scores [N, C, B], got ", boxes.sizes(),
                    " and ", scores.sizes());
    const int64_t most = limit.value(c, 0), count = boxes.size(1);
    const double threshold = iou.value(c, 0);
    const std::vector<double> bound = least.read(c);
    std::vector<int64_t> selected;
    for (int64_t n = 0; n < boxes.size(0); ++n)
      for (int64_t k = 0; k < scores.size(1); ++k) {
        const double* score = scores.const_data_ptr<double>() + (n * scores.size(1) + k) * count;
        const double* box = boxes.const_data_ptr<double>() + n * count * 4;
        std::vector<int64_t> order;
        for (int64_t i = 0; i < count; ++i)
          if (bound.empty() ? score[i] == score[i] : score[i] > bound[0]) order.push_back(i);
        std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return score[i] > score[j]; });
        std::vector<Box> kept;
        for (int64_t i : order) {
          if (static_cast<int64_t>(kept.size()) >= most) break;
          const Box candidate(box + 4 * i, center);
          if (std::any_of(kept.begin(), kept.end(), [&](const Box& b) { return overlaps(candidate, b, threshold); }))
            continue;
          kept.push_back(candidate);
          selected.insert(selected.end(), {n, k, i});
        }
      }
    c.out(0, at::tensor(selected, at::TensorOptions(at::kLong)).view({-1, 3}).to(c.in(0).device()));
  };
}

}  // namespace

ORTMODULE_KERNEL("", NonMaxSuppression, "aten", make_non_max_suppression);

}  // namespace ortmodule

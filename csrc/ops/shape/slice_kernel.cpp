// ATen kernels of Slice, SliceGrad and SliceScatter. A forward step gives a view; a backward step, which torch's
// slices lack, is a view of the same elements and a flip.
#include <ATen/ops/flip.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/host_values.h"
#include "kernels/kernel_context.h"
#include "records/kernel_registry.h"

namespace ortmodule {
namespace {

class SliceArguments {
 public:
  // `first` is the slot of `starts`; `ends`, `axes` and `steps` follow.
  SliceArguments(const Node& node, size_t first)
      : starts_(node, first), ends_(node, first + 1), axes_(node, first + 2), steps_(node, first + 3) {}

  // The sliced elements of x in rising order; `flipped` gets the axes that run backwards.
  at::Tensor view(const KernelContext& c, at::Tensor x, c10::DimVector& flipped) const {
    c10::DimVector s, e, a, t;
    const c10::IntArrayRef starts = starts_.read(c, s), ends = ends_.read(c, e), axes = axes_.read(c, a),
                           steps = steps_.read(c, t);
    ORTMODULE_CHECK(starts.size() == ends.size(), kRuntime, "[Slice] ", starts.size(), " starts, but ", ends.size(),
                    " ends");
    ORTMODULE_CHECK(!axes_.present() || axes.size() == starts.size(), kRuntime, "[Slice] ", starts.size(),
                    " starts, but ", axes.size(), " axes");
    ORTMODULE_CHECK(!steps_.present() || steps.size() == starts.size(), kRuntime, "[Slice] ", starts.size(),
                    " starts, but ", steps.size(), " steps");
    for (size_t k = 0; k < starts.size(); ++k) {
      const int64_t axis = axes_.present() ? axes[k] : static_cast<int64_t>(k);
      const int64_t step = steps_.present() ? steps[k] : 1;
      if (step > 0) {
        x = x.slice(axis, starts[k], ends[k], step);
        continue;
      }
      ORTMODULE_CHECK(step < 0, kRuntime, "[Slice] a step of 0");
      const int64_t n = x.size(axis);
      const int64_t first = std::clamp<int64_t>(starts[k] < 0 ? starts[k] + n : starts[k], -1, n - 1);
      const int64_t last = std::clamp<int64_t>(ends[k] < 0 ? ends[k] + n : ends[k], -1, n - 1);
      const int64_t back = -std::max(step, -std::max<int64_t>(n, 1));  // a longer step leaves x as soon
      const int64_t count = first <= last ? 0 : (first - last + back - 1) / back;
      const int64_t lowest = count == 0 ? 0 : first - (count - 1) * back;
      x = x.slice(axis, lowest, count == 0 ? 0 : first + 1, back);
      flipped.push_back(axis);
    }
    return x;
  }

 private:
  HostInts starts_, ends_, axes_, steps_;
};

ORTMODULE_KERNEL("", Slice, "aten", [](const Node& node) -> Kernel {
  return [arguments = SliceArguments(node, 1)](KernelContext& c) {
    c10::DimVector flipped;
    at::Tensor y = arguments.view(c, c.in(0), flipped);
    c.out(0, flipped.empty() ? std::move(y) : at::flip(y, flipped));
  };
});

Kernel slice_grad(const Node& node) {
  return [sizes = HostInts(node, 1), arguments = SliceArguments(node, 2)](KernelContext& c) {
    c10::DimVector storage, flipped;
    at::Tensor dx = at::zeros(sizes.read(c, storage), c.in(0).options());
    at::Tensor target = arguments.view(c, dx, flipped);
    target.copy_(flipped.empty() ? c.in(0) : at::flip(c.in(0), flipped));
    c.out(0, std::move(dx));
  };
}

ORTMODULE_KERNEL("ai.ortmodule", SliceGrad, "aten", slice_grad);
ORTMODULE_KERNEL("com.microsoft", SliceGrad, "aten", slice_grad);

ORTMODULE_KERNEL("ai.ortmodule", SliceScatter, "aten", [](const Node& node) -> Kernel {
  const int64_t axis = node.get_int("axis", 0);
  return [starts = HostInts(node, 2), ends = HostInts(node, 3), steps = HostInts(node, 4), axis](KernelContext& c) {
    at::Tensor y = c.may_overwrite(0) ? c.in(0) : c.in(0).clone();
    y.slice(axis, starts.value(c, 0), ends.value(c, 0), steps.value(c, 1)).copy_(c.in(1));
    c.out(0, std::move(y));
  };
}).inplace();

}  // namespace
}  // namespace ortmodule

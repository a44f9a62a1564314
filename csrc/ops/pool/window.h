// Geometry of pooling windows as the standard writes it: pads as begins then ends, auto_pad, ceil_mode.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/near_numbers.h"
#include "base/status.h"
#include "graph/graph.h"

namespace ortmodule {

struct PoolAttributes {
  std::vector<int64_t> kernel, strides, dilations, pads;
  std::string auto_pad;
  bool ceil;

  explicit PoolAttributes(const Node& node)
      : kernel(node.get_ints("kernel_shape")),
        strides(node.get_ints("strides")),
        dilations(node.get_ints("dilations")),
        pads(node.get_ints("pads")),
        auto_pad(node.get_string("auto_pad", "NOTSET")),
        ceil(node.get_int("ceil_mode", 0) != 0) {
    const size_t rank = kernel.size();
    if (strides.empty()) strides.assign(rank, 1);
    if (dilations.empty()) dilations.assign(rank, 1);
    if (pads.empty() || auto_pad == "VALID") pads.assign(2 * rank, 0);
    ORTMODULE_CHECK_GRAPH(fits(rank), "[", node.op(), "] kernel_shape has ", rank,
                          " numbers; strides, dilations and pads should fit it and be positive (", node.describe(),
                          ")");
  }

  size_t rank() const { return kernel.size(); }
  bool fits(size_t n) const {
    const auto positive = [](const std::vector<int64_t>& list) {
      return are_near(list) && std::all_of(list.begin(), list.end(), [](int64_t v) { return v > 0; });
    };
    return are_near(pads) && positive(kernel) && positive(strides) && positive(dilations) && rank() == n &&
           strides.size() == n && dilations.size() == n && pads.size() == 2 * n;
  }
  bool same() const { return auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER"; }
  int64_t extent(size_t axis) const { return dilations[axis] * (kernel[axis] - 1) + 1; }

  // True when ATen's pooling takes these pads: both ends alike and at most half a window.
  bool native_pads() const {
    for (size_t i = 0; i < rank(); ++i)
      if (pads[i] != pads[i + rank()] || 2 * pads[i] > kernel[i]) return false;
    return true;
  }

  // auto_pad resolved against an input of spatial sizes `sizes`.
  void resolve_same(const int64_t* sizes) {
    if (!same()) return;
    for (size_t i = 0; i < rank(); ++i) {
      const int64_t out = (sizes[i] + strides[i] - 1) / strides[i];
      const int64_t total = std::max<int64_t>(0, (out - 1) * strides[i] + extent(i) - sizes[i]);
      const bool upper = auto_pad == "SAME_UPPER";
      pads[i] = upper ? total / 2 : total - total / 2;
      pads[i + rank()] = total - pads[i];
    }
  }

  // constant_pad_nd's list: the last dimension first, (begin, end) each; negative to cut.
  std::vector<int64_t> aten_pads(int64_t sign = 1) const {
    std::vector<int64_t> out;
    for (size_t i = rank(); i-- > 0;) {
      out.push_back(sign * pads[i]);
      out.push_back(sign * pads[i + rank()]);
    }
    return out;
  }
};

// One spatial axis of a window of maxima.
struct PoolAxis {
  int64_t size, out, kernel, stride, pad, dilation;

  PoolAxis(const PoolAttributes& a, size_t axis, int64_t size, int64_t pad)
      : size(size), out(0), kernel(a.kernel[axis]), stride(a.strides[axis]), pad(pad), dilation(a.dilations[axis]) {
    const int64_t room = size + 2 * pad - dilation * (kernel - 1) - 1;
    if (room >= 0 && stride > 0) out = room / stride + 1;
  }
  int64_t begin(int64_t window) const { return window * stride - pad; }
  // The first place of a window that is not in the pad.
  int64_t first(int64_t window) const {
    const int64_t at = begin(window);
    return at >= 0 ? at : at + (-at + dilation - 1) / dilation * dilation;
  }
  // ATen refuses wider pads; no window lies in the pad alone.
  bool is_plain() const { return out > 0 && pad >= 0 && 2 * pad <= kernel && dilation <= size; }
};

}  // namespace ortmodule

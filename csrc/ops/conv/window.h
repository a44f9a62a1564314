// Geometry of sliding windows as the standard writes it: pads as begins then ends, auto_pad.
//
// Convolution and its transpose share it; pooling has its own, because its folder may not depend on this one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dim.h"
#include "base/near_numbers.h"
#include "graph/graph.h"

namespace ortmodule {

struct ConvAttributes {
  std::vector<int64_t> strides, dilations, pads, output_padding, output_shape;
  std::string auto_pad;
  int64_t group;

  // `rank` counts spatial dimensions; missing lists get their defaults.
  ConvAttributes(const Node& node, size_t rank)
      : strides(node.get_ints("strides")),
        dilations(node.get_ints("dilations")),
        pads(node.get_ints("pads")),
        output_padding(node.get_ints("output_padding")),
        output_shape(node.get_ints("output_shape")),
        auto_pad(node.get_string("auto_pad", "NOTSET")),
        group(node.get_int("group", 1)) {
    if (strides.empty()) strides.assign(rank, 1);
    if (dilations.empty()) dilations.assign(rank, 1);
    if (pads.empty()) pads.assign(2 * rank, 0);
    if (output_padding.empty()) output_padding.assign(rank, 0);
  }

  bool fits(size_t rank) const {
    for (const auto* list : {&strides, &dilations})
      for (int64_t v : *list)
        if (v < 1) return false;
    for (const auto* list : {&strides, &dilations, &pads, &output_padding, &output_shape})
      if (!are_near(*list)) return false;
    return group > 0 && strides.size() == rank && dilations.size() == rank && pads.size() == 2 * rank &&
           output_padding.size() == rank && (output_shape.empty() || output_shape.size() == rank);
  }
  bool same() const { return auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER"; }
  bool symmetric() const {
    for (size_t i = 0; i < pads.size() / 2; ++i)
      if (pads[i] != pads[i + pads.size() / 2]) return false;
    return true;
  }
  int64_t extent(size_t axis, int64_t kernel) const { return dilations[axis] * (kernel - 1) + 1; }

  // Splits a total padding over both ends, the odd one where auto_pad says: at the end for SAME_UPPER alone.
  void set_total_pad(size_t axis, int64_t total) {
    total = total < 0 ? 0 : total;
    const int64_t small = total / 2, large = total - small;
    const bool upper = auto_pad == "SAME_UPPER";
    pads[axis] = upper ? small : large;
    pads[axis + pads.size() / 2] = upper ? large : small;
  }
};

}  // namespace ortmodule

// Filters that are the same at each run of a session, in the layout that their kernel reads, oneDNN's or that of
// few_channels.h: changed into it once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>

#include "graph/graph.h"
#include "ops/conv/window.h"

namespace ortmodule {

// What is done to the result before it is written: something of its sizes is added, negative numbers become zero.
struct ConvEnding {
  at::Tensor other{};
  bool relu = false;
};

class PackedFilters {
 public:
  // Of a Conv; null where its filters are no constant, or torch has no oneDNN.
  static std::shared_ptr<PackedFilters> of(const Node& node);

  // The result, of sizes `y`, of x [N, C, H, W] of floats, contiguous; undefined where that does not apply: other types
  // and layouts, filters that are not those of the first call, bits of eager's asked for.
  at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const ConvAttributes& a,
                         c10::IntArrayRef padding, c10::IntArrayRef y, const ConvEnding& ending);

 private:
  struct Layout {
    std::once_flag once;
    at::Tensor filters, packed;

    // `w` as `pack` lays it out, once; undefined where that was made of others.
    template <class Pack>
    at::Tensor of(const at::Tensor& w, Pack pack);
  };
  Layout onednn_, few_channels_;
};

}  // namespace ortmodule

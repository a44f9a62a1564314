// HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix: tables made from a few numbers.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

DType output_type(InferContext& c) { return static_cast<DType>(c.attr_int("output_datatype", 1)); }

void window(OpRecord& r) {
  r.host_input("size")
      .output("output")
      .attr("output_datatype", AttrKind::kInt)
      .attr("periodic", AttrKind::kInt)
      .traits(kCheap)
      .infer([](InferContext& c) {
        const auto size = c.dims_value(0);
        c.out(0, output_type(c), Shape{size && size->size() == 1 ? (*size)[0] : c.fresh_dim()});
      });
}

}  // namespace

ORTMODULE_OP("", HannWindow, 17).apply(window);
ORTMODULE_OP("", HammingWindow, 17).apply(window);
ORTMODULE_OP("", BlackmanWindow, 17).apply(window);

// [dft_length / 2 + 1, num_mel_bins]
ORTMODULE_OP("", MelWeightMatrix, 17)
    .host_input("num_mel_bins")
    .host_input("dft_length")
    .host_input("sample_rate")
    .host_input("lower_edge_hertz")
    .host_input("upper_edge_hertz")
    .output("output")
    .attr("output_datatype", AttrKind::kInt)
    .infer([](InferContext& c) {
      const auto bins = c.dims_value(0), length = c.dims_value(1);
      Shape out = c.fresh_shape(2);
      if (length && length->size() == 1) out[0] = Dim::floor_div((*length)[0], Dim(2)) + Dim(1);
      if (bins && bins->size() == 1) out[1] = (*bins)[0];
      c.out(0, output_type(c), std::move(out));
    });

}  // namespace ortmodule

// InplaceClipGradNorm of com.microsoft: gradients brought down to a norm over all of them, as torch's clip_grad_norm_.
//
// The clipped gradients are an output; the inputs are not written, whatever the name says.
#include "base/container_type.h"
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {

ORTMODULE_OP("com.microsoft", InplaceClipGradNorm, 1)
    .input("gradients")
    .output("clipped_gradients")
    .attr("max_norm", AttrKind::kFloat)
    .attr("norm_type", AttrKind::kString)
    .traits(kTakesContainers)
    .infer([](InferContext& c) {
      if (!is_sequence(c.dtype(0)))
        c.error("gradients should be a sequence, got " + std::string(dtype_name(c.dtype(0))));
      if (const std::string type = c.node().get_string("norm_type", "fro"); type != "fro")
        c.error("norm_type should be 'fro', got '" + type + "'");
      c.out(0, c.dtype(0), std::nullopt);
    })
    .not_differentiable();

}  // namespace ortmodule

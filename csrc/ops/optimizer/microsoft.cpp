// The optimizers of ONNX Runtime's training graphs, in com.microsoft: Adam, AdamW, Lamb and SGD.
//
// The V2 forms and AdamW take sequences of tensors, the others single tensors. New values are outputs; an input is
// never written, whereas ONNX Runtime may write an output over it. Where the update signal is false, everything stays
// as it is.
#include "base/container_type.h"
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void check_sequences(InferContext& c, size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i)
    if (!is_sequence(c.dtype(i))) c.error(str("input ", i, " should be a sequence, got ", dtype_name(c.dtype(i))));
}

void moments(OpRecord& r) {
  r.attr("alpha", AttrKind::kFloat).attr("beta", AttrKind::kFloat).attr("epsilon", AttrKind::kFloat);
}

}  // namespace

// Weights, gradients and both moments as sequences; `step` counts from one. adam_mode 0 decays the weights before the
// update, as torch's AdamW, 1 after it, as that of the transformers library did.
ORTMODULE_OP("com.microsoft", AdamWOptimizer, 1)
    .host_input("lr")
    .host_input("step")
    .input("weights")
    .input("gradients")
    .input("momentums_1")
    .input("momentums_2")
    .host_input("update_signal", Presence::kOptional)
    .output("updated_flag")
    .output("updated_weights", Presence::kOptional)
    .output("updated_momentums_1", Presence::kOptional)
    .output("updated_momentums_2", Presence::kOptional)
    .apply(moments)
    .attr("weight_decay", AttrKind::kFloat)
    .attr("adam_mode", AttrKind::kInt)
    .attr("correct_bias", AttrKind::kInt)
    .traits(kTakesContainers)
    .infer([](InferContext& c) {
      check_sequences(c, 2, 4);
      c.out(0, DType::kBool, Shape{Dim(1)});
      c.out(1, c.dtype(2), std::nullopt);
      c.out(2, c.dtype(4), std::nullopt);
      c.out(3, c.dtype(5), std::nullopt);
    })
    .not_differentiable();

ORTMODULE_OP("com.microsoft", SGDOptimizerV2, 1)
    .host_input("lr")
    .input("weights")
    .input("gradients")
    .host_input("update_signal", Presence::kOptional)
    .output("update_completed")
    .output("updated_weights", Presence::kOptional)
    .traits(kTakesContainers)
    .infer([](InferContext& c) {
      check_sequences(c, 1, 2);
      c.out(0, DType::kBool, Shape{Dim(1)});
      c.out(1, c.dtype(1), std::nullopt);
    })
    .not_differentiable();

// NW = W - ETA G, NG = -ETA G
ORTMODULE_OP("com.microsoft", SGDOptimizer, 1)
    .host_input("ETA")
    .input("W")
    .input("G")
    .output("NW", Presence::kOptional)
    .output("NG", Presence::kOptional)
    .infer(infer_like<1, 2>)
    .not_differentiable();

// weight_decay_mode 0: lambda w is part of the update; 1: it is taken off after it.
ORTMODULE_OP("com.microsoft", AdamOptimizer, 1)
    .host_input("R")
    .host_input("T")
    .input("weights")
    .input("gradients")
    .input("moment_1")
    .input("moment_2")
    .optional_input("mixed_precision_weights")
    .host_input("loss_scale", Presence::kOptional)
    .host_input("global_gradient_norm", Presence::kOptional)
    .host_input("update_signal", Presence::kOptional)
    .output("new_T")
    .output("new_moment_1")
    .output("new_moment_2")
    .output("new_weights", Presence::kOptional)
    .output("new_gradients", Presence::kOptional)
    .output("new_mixed_precision_weights", Presence::kOptional)
    .apply(moments)
    .attr("lambda", AttrKind::kFloat)
    .attr("do_bias_correction", AttrKind::kInt)
    .attr("weight_decay_mode", AttrKind::kInt)
    .attr("max_norm_clip", AttrKind::kFloat)
    .infer(infer_like<1, 4, 5, 2, 3, 6>)
    .not_differentiable();

// Groups of five follow the step: weights, gradients, both moments, 16-bit weights. The attributes have a value a
// group.
ORTMODULE_OP("com.microsoft", LambOptimizer, 1)
    .host_input("update_signal", Presence::kOptional)
    .host_input("loss_scale", Presence::kOptional)
    .host_input("gradient_norm", Presence::kOptional)
    .host_input("R", Presence::kOptional)
    .host_input("step", Presence::kOptional)
    .variadic_input("groups")
    .output("new_step", Presence::kOptional)
    .output("new_groups", Presence::kVariadic)
    .attr("alpha", AttrKind::kFloats)
    .attr("beta", AttrKind::kFloats)
    .attr("lambda", AttrKind::kFloats)
    .attr("epsilon", AttrKind::kFloats)
    .attr("max_norm_clip", AttrKind::kFloats)
    .attr("ratio_min", AttrKind::kFloat)
    .attr("ratio_max", AttrKind::kFloat)
    .attr("do_bias_correction", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (!c.has(3)) c.error("R, the learning rate, is needed");
      if (c.has(4)) c.same_as(0, 4);
      for (size_t i = 5; i < c.input_count(); ++i)
        if (c.has(i)) c.same_as(i - 4, i);
    })
    .not_differentiable();

// The inputs as they are, whatever else has to come first.
ORTMODULE_OP("com.microsoft", PassThrough, 1)
    .variadic_input("inputs")
    .output("outputs", Presence::kVariadic)
    .infer([](InferContext& c) {
      if (c.node().outputs().size() > c.input_count()) c.error("has more outputs than inputs");
      for (size_t i = 0; i < c.node().outputs().size(); ++i) c.same_as(i, i);
    })
    .grad({"inputs"}, [](GradContext& c) {
      for (size_t i = 0; i < c.node().outputs().size(); ++i) c.GI(i, c.GO(i));
    });

}  // namespace ortmodule

// DFT and STFT. Complex numbers are a last axis of two, real ones a last axis of one.
//
// Their gradients run the forward kernel again under autograd: PyTorch knows the adjoint of every kind of transform.
#include "base/status.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/rerun.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

void infer_dft(InferContext& c, std::optional<int64_t> axis) {
  const Shape* x = c.shape(0);
  if (!x || !axis) {
    c.out(0, c.dtype(0), x ? std::optional<Shape>(c.fresh_shape(x->size())) : std::nullopt);
    return;
  }
  if (x->size() < 2) c.error(str("the input should be [..., 1 or 2], got ", shape_text(*x)));
  const size_t along = c.axis(*axis, x->size());
  if (along + 1 == x->size()) c.error("the last axis holds real and imaginary part and cannot be transformed");
  const bool inverse = c.attr_int("inverse", 0) != 0, onesided = c.attr_int("onesided", 0) != 0;
  const auto given = c.has(1) ? c.dims_value(1) : std::nullopt;
  Dim length = (*x)[along];
  if (given && given->size() == 1)
    length = (*given)[0];
  else if (c.has(1))
    length = c.fresh_dim();
  else if (inverse && onesided)
    length = (length - Dim(1)) * Dim(2);
  Shape out = *x;
  out[along] = onesided && !inverse ? Dim::floor_div(length, Dim(2)) + Dim(1) : length;
  out.back() = Dim(onesided && inverse ? 1 : 2);
  c.out(0, c.dtype(0), std::move(out));
}

}  // namespace

ORTMODULE_OP("", DFT, 20)
    .input("input")
    .host_input("dft_length", Presence::kOptional)
    .host_input("axis", Presence::kOptional)
    .output("output")
    .attr("inverse", AttrKind::kInt)
    .attr("onesided", AttrKind::kInt)
    .infer([](InferContext& c) {
      if (!c.has(2)) return infer_dft(c, -2);
      const auto axis = c.ints_value(2);
      infer_dft(c, axis && axis->size() == 1 ? std::optional<int64_t>((*axis)[0]) : std::nullopt);
    })
    .older(17, 19,
           [](UpgradeContext& c) {
             const int64_t axis = c.take_int("axis").value_or(1);
             c.rewrite({c.I(0), c.I(1), c.node().graph().constant(TensorData::scalar_int(axis))});
           })
    .grad({"input"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::DFTGrad"); });
ORTMODULE_OP("ai.ortmodule", DFTGrad, 1).apply(rerun_record);

// signal [B, length, 1 or 2] -> [B, frames, bins, 2]; frames that do not fit whole are left out.
ORTMODULE_OP("", STFT, 17)
    .input("signal")
    .host_input("frame_step")
    .optional_input("window")
    .host_input("frame_length", Presence::kOptional)
    .output("output")
    .attr("onesided", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape *signal = c.shape(0), *window = c.has(2) ? c.shape(2) : nullptr;
      const auto step = c.ints_value(1);
      const auto given = c.has(3) ? c.dims_value(3) : std::nullopt;
      if (signal && signal->size() != 2 && signal->size() != 3)
        c.error(str("signal should be [batch, length, 1 or 2], got ", shape_text(*signal)));
      Shape out = c.fresh_shape(4);
      out[3] = Dim(2);
      if (signal) out[0] = (*signal)[0];
      std::optional<Dim> length;
      if (given && given->size() == 1)
        length = (*given)[0];
      else if (!c.has(3) && window && window->size() == 1)
        length = (*window)[0];
      else if (!c.has(3) && !c.has(2) && signal)
        length = (*signal)[1];
      const bool real = signal && (signal->size() == 2 || ((*signal)[2].is_known() && (*signal)[2].value() == 1));
      const bool complex = signal && signal->size() == 3 && (*signal)[2].is_known() && (*signal)[2].value() == 2;
      if (length && (real || complex))
        out[2] = real && c.attr_int("onesided", 1) ? Dim::floor_div(*length, Dim(2)) + Dim(1) : *length;
      if (length && signal && step && step->size() == 1) {
        if ((*step)[0] <= 0) c.error(str("a frame_step of ", (*step)[0]));
        out[1] = Dim::floor_div((*signal)[1] - *length, Dim((*step)[0])) + Dim(1);
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"signal", "window"}, [](GradContext& c) { rerun_gradient(c, "ai.ortmodule::STFTGrad"); });
ORTMODULE_OP("ai.ortmodule", STFTGrad, 1).apply(rerun_record);

}  // namespace ortmodule

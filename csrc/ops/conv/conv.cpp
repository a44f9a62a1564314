// Conv and ConvTranspose over one to three spatial dimensions.
#include "ops/conv/conv_shape.h"
#include "ops/conv/window.h"

#include "base/status.h"
#include "ops/grad_context.h"
#include "ops/infer_context.h"
#include "ops/recompute.h"
#include "ops/registry.h"

namespace ortmodule {
namespace {

// Checks what all convolutions share; null when a rank is unknown.
const Shape* checked_input(InferContext& c, size_t x_slot, size_t w_slot, const Shape*& w) {
  const Shape* x = c.shape(x_slot);
  w = c.shape(w_slot);
  if (!x || !w) return nullptr;
  if (x->size() < 3 || x->size() > 5) c.error(str("X should be [N, C, d...] with 1 to 3 d, got ", shape_text(*x)));
  if (w->size() != x->size()) c.error(str("X ", shape_text(*x), " and W ", shape_text(*w), " differ in rank"));
  if (!ConvAttributes(c.node(), x->size() - 2).fits(x->size() - 2))
    c.error(str("an attribute does not have ", x->size() - 2, " positive numbers per end"));
  return x;
}

double conv_flops(const Node& node, const SizeOf& size) {
  const Shape& weight = *node.input(1)->type().shape;
  return 2 * count_elements(*node.output(0)->type().shape, size) * count_elements(weight, size) / size(weight[0]);
}

}  // namespace

void infer_convolution(InferContext& c, size_t x_slot, size_t w_slot, DType result) {
  const Shape* w = nullptr;
  const Shape* x = checked_input(c, x_slot, w_slot, w);
  if (!x) return c.out(0, result, std::nullopt);
  const size_t rank = x->size() - 2;
  const ConvAttributes a(c.node(), rank);
  const Dim channels = (*w)[1] * Dim(a.group);
  if ((*x)[1].is_known() && channels.is_known() && (*x)[1] != channels)
    c.error(str("X has ", (*x)[1].text(), " channels, W expects ", channels.text()));
  Shape out{(*x)[0], (*w)[0]};
  for (size_t i = 0; i < rank; ++i) {
    const Dim &size = (*x)[i + 2], &kernel = (*w)[i + 2];
    if (a.same()) {
      out.push_back(Dim::floor_div(size + Dim(a.strides[i] - 1), Dim(a.strides[i])));
      continue;
    }
    const Dim pad = a.auto_pad == "VALID" ? Dim(0) : Dim(a.pads[i] + a.pads[i + rank]);
    out.push_back(Dim::floor_div(size + pad - (Dim(a.dilations[i]) * (kernel - Dim(1)) + Dim(1)), Dim(a.strides[i])) +
                  Dim(1));
  }
  c.out(0, result, std::move(out));
}

namespace {

void infer_conv(InferContext& c) { infer_convolution(c, 0, 1, c.dtype(0)); }

void infer_conv_transpose(InferContext& c) {
  const Shape* w = nullptr;
  const Shape* x = checked_input(c, 0, 1, w);
  if (!x) return c.out(0, c.dtype(0), std::nullopt);
  const size_t rank = x->size() - 2;
  const ConvAttributes a(c.node(), rank);
  Shape out{(*x)[0], (*w)[1] * Dim(a.group)};
  for (size_t i = 0; i < rank; ++i) {
    const Dim &size = (*x)[i + 2], &kernel = (*w)[i + 2];
    if (!a.output_shape.empty()) {
      out.push_back(a.output_shape[i]);
    } else if (a.same()) {
      out.push_back(size * Dim(a.strides[i]));
    } else {
      const Dim pad = a.auto_pad == "VALID" ? Dim(0) : Dim(a.pads[i] + a.pads[i + rank]);
      out.push_back(Dim(a.strides[i]) * (size - Dim(1)) + Dim(a.output_padding[i]) +
                    Dim(a.dilations[i]) * (kernel - Dim(1)) + Dim(1) - pad);
    }
  }
  c.out(0, c.dtype(0), std::move(out));
}

}  // namespace

void conv_attributes(OpRecord& op) {
  op.attr("auto_pad", AttrKind::kString)
      .attr("dilations", AttrKind::kInts)
      .attr("group", AttrKind::kInt)
      .attr("kernel_shape", AttrKind::kInts)
      .attr("pads", AttrKind::kInts)
      .attr("strides", AttrKind::kInts);
}

namespace {

template <const char* const& op>
void gradient(GradContext& c) {
  const auto grads = c.emit_some(op, {c.GO(0), c.I(0), c.I(1)}, {c.needs(0), c.needs(1), c.needs(2)},
                                 Attributes(c.node().attributes()));
  for (size_t i = 0; i < 3; ++i) c.GI(i, grads[i]);
}
constexpr const char* kConvGrad = "ai.ortmodule::ConvGrad";
constexpr const char* kConvTransposeGrad = "ai.ortmodule::ConvTransposeGrad";

void conv_like(OpRecord& op) { op.input("X").input("W").optional_input("B").output("Y").apply(conv_attributes); }

void conv_grad_like(OpRecord& op) {
  op.input("dY")
      .input("X")
      .input("W")
      .output("dX", Presence::kOptional)
      .output("dW", Presence::kOptional)
      .output("dB", Presence::kOptional)
      .apply(conv_attributes)
      .infer([](InferContext& c) {
        c.same_as(0, 1);
        c.same_as(1, 2);
        const Shape* dy = c.shape(0);
        c.out(2, c.dtype(0), dy ? std::optional<Shape>({(*dy)[1]}) : std::nullopt);
      })
      .not_differentiable();
}

}  // namespace

// X[N, C, d...], W[M, C / group, k...], B[M] -> Y[N, M, o...]
ORTMODULE_OP("", Conv, 1).apply(conv_like).infer(infer_conv).grad({"X", "W", "B"}, gradient<kConvGrad>);

// X[N, C, d...], W[C, M / group, k...], B[M] -> Y[N, M, o...]
ORTMODULE_FLOPS("", Conv, conv_flops);

ORTMODULE_OP("", ConvTranspose, 1)
    .apply(conv_like)
    .attr("output_padding", AttrKind::kInts)
    .attr("output_shape", AttrKind::kInts)
    .infer(infer_conv_transpose)
    .grad({"X", "W", "B"}, gradient<kConvTransposeGrad>);

ORTMODULE_OP("ai.ortmodule", ConvGrad, 1).apply(conv_grad_like);

ORTMODULE_OP("ai.ortmodule", ConvTransposeGrad, 1)
    .apply(conv_grad_like)
    .attr("output_padding", AttrKind::kInts)
    .attr("output_shape", AttrKind::kInts);

}  // namespace ortmodule

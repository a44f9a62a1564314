// Conv and ConvTranspose over one to three spatial dimensions.
#include "ops/conv/conv_shape.h"
#include "ops/conv/window.h"

#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/infer_like.h"
#include "records/recompute_form.h"
#include "records/registry.h"

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

}  // namespace

double conv_flops(const Node& node, const SizeOf& size) {
  const Shape& weight = *node.input(1)->type().shape;
  return 2 * count_elements(*node.output(0)->type().shape, size) * count_elements(weight, size) / size(weight[0]);
}

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

// For each of dX and dW, what the convolution itself takes.
double conv_grad_flops(const Node& node, const SizeOf& size) {
  const Shape& weight = *node.input(2)->type().shape;
  const double one =
      2 * count_elements(*node.input(0)->type().shape, size) * count_elements(weight, size) / size(weight[0]);
  return one * ((node.output(0) ? 1 : 0) + (node.output(1) ? 1 : 0));
}

// -- bodies of the gradients
// -------------------------------------------------------------------------------------------

// Pads that do not depend on sizes; false for auto_pad SAME with unknown sizes.
bool resolve_pads(ConvAttributes& a, const NodeArg* x, const NodeArg* w) {
  const size_t rank = a.strides.size();
  if (a.auto_pad == "VALID") a.pads.assign(2 * rank, 0);
  if (!a.same()) return true;
  for (size_t i = 0; i < rank; ++i) {
    const Dim &size = (*x->type().shape)[i + 2], &kernel = (*w->type().shape)[i + 2];
    if (!size.is_known() || !kernel.is_known()) return false;
    const int64_t out = (size.value() + a.strides[i] - 1) / a.strides[i];
    a.set_total_pad(i, (out - 1) * a.strides[i] + a.extent(i, kernel.value()) - size.value());
  }
  return true;
}

// The transposed convolution without pads reaches from the left pad to the last window's end; `like` says the size.
NodeArg* input_gradient(BodyFormula& f, NodeArg* dy, NodeArg* w, NodeArg* like, const ConvAttributes& a) {
  BodyContext& c = f.c;
  NodeArg* full =
      c.emit("ConvTranspose", {dy, w}, {{"strides", a.strides}, {"dilations", a.dilations}, {"group", a.group}});
  const auto rank = static_cast<int64_t>(a.strides.size());
  const std::vector<int64_t> begins(a.pads.begin(), a.pads.begin() + rank);
  std::vector<int64_t> cut{0, 0};
  for (int64_t p : begins) cut.push_back(-p);
  NodeArg* reach = f.sub(f.shape(full, 2), c.ints(begins));
  return c.emit("Pad", {full, f.concat({c.ints(cut), c.ints({0, 0}), f.sub(f.shape(like, 2), reach)})});
}

// A convolution of the wide tensor with the narrow one as its kernel, the batch as channels, strides and dilations in
// each other's place: [M, C / group, k...] for wide [N, C, ...] and narrow [N, M, ...].
NodeArg* weight_gradient(BodyFormula& f, NodeArg* wide, NodeArg* narrow, NodeArg* w, const ConvAttributes& a) {
  BodyContext& c = f.c;
  const auto rank = static_cast<int64_t>(a.strides.size());
  std::vector<int64_t> swap{1, 0};
  for (int64_t i = 0; i < rank; ++i) swap.push_back(i + 2);
  NodeArg* x = f.transpose(wide, swap);
  if (a.group > 1) {  // [N, G Cg, ...] -> [Cg, G N, ...]
    NodeArg* apart = f.reshape(wide, f.concat({c.ints({0, a.group, -1}), f.shape(wide, 2)}));
    std::vector<int64_t> perm{2, 1, 0};
    for (int64_t i = 0; i < rank; ++i) perm.push_back(i + 3);
    x = f.reshape(f.transpose(apart, perm), f.concat({f.shape(w, 1, 2), c.ints({-1}), f.shape(wide, 2)}));
  }
  NodeArg* product = c.emit("Conv", {x, f.transpose(narrow, swap)},
                            {{"strides", a.dilations}, {"dilations", a.strides}, {"pads", a.pads}, {"group", a.group}});
  std::vector<int64_t> starts(static_cast<size_t>(rank), 0), axes;
  for (int64_t i = 0; i < rank; ++i) axes.push_back(i + 2);
  NodeArg* cut = c.emit("Slice", {product, c.ints(starts), f.shape(w, 2), c.ints(axes)});
  return f.transpose(cut, swap);
}

void bias_gradient(BodyFormula& f) {
  std::vector<int64_t> axes{0};
  for (int64_t i = 2; i < f.rank(f.c.in(0)); ++i) axes.push_back(i);
  if (f.c.wants(2)) f.c.out(2, f.sum(f.c.in(0), axes, false));
}

void conv_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg *dy = c.in(0), *x = c.in(1), *w = c.in(2);
  ConvAttributes a(c.node(), static_cast<size_t>(f.rank(x)) - 2);
  if (!resolve_pads(a, x, w)) return;
  if (c.wants(0)) c.out(0, input_gradient(f, dy, w, x, a));
  if (c.wants(1)) c.out(1, weight_gradient(f, x, dy, w, a));
  bias_gradient(f);
}

// The roles of dY and X are changed. The sizes that output_shape and auto_pad SAME imply are left out.
void conv_transpose_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg *dy = c.in(0), *x = c.in(1), *w = c.in(2);
  ConvAttributes a(c.node(), static_cast<size_t>(f.rank(x)) - 2);
  if (a.same() || !a.output_shape.empty()) return;
  resolve_pads(a, x, w);
  if (c.wants(0))
    c.out(0, c.emit("Conv", {dy, w},
                    {{"strides", a.strides}, {"dilations", a.dilations}, {"pads", a.pads}, {"group", a.group}}));
  if (c.wants(1)) c.out(1, weight_gradient(f, dy, x, w, a));
  bias_gradient(f);
}

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
        const Shape *w = nullptr, *x = checked_input(c, 1, 2, w), *dy = c.shape(0);
        if (x && dy && dy->size() != x->size())
          c.error(str("dY ", shape_text(*dy), " and X ", shape_text(*x), " differ in rank"));
        if (dy && dy->size() < 2) c.error(str("dY should be [N, M, o...], got ", shape_text(*dy)));
        infer_like<1, 2>(c);
        c.out(2, c.dtype(0), dy ? std::optional<Shape>({(*dy)[1]}) : std::nullopt);
      })
      .not_differentiable();
}

void conv_grad(OpRecord& op) { op.apply(conv_grad_like).body(conv_grad_body).flops(conv_grad_flops); }

void conv_transpose_grad(OpRecord& op) {
  op.apply(conv_grad_like)
      .attr("output_padding", AttrKind::kInts)
      .attr("output_shape", AttrKind::kInts)
      .body(conv_transpose_grad_body);
}

}  // namespace

// X[N, C, d...], W[M, C / group, k...], B[M] -> Y[N, M, o...]
ORTMODULE_OP("", Conv, 1)
    .apply(conv_like)
    .infer(infer_conv)
    .grad({"X", "W", "B"}, gradient<kConvGrad>)
    .flops(conv_flops);

// X[N, C, d...], W[C, M / group, k...], B[M] -> Y[N, M, o...]
ORTMODULE_OP("", ConvTranspose, 1)
    .apply(conv_like)
    .attr("output_padding", AttrKind::kInts)
    .attr("output_shape", AttrKind::kInts)
    .infer(infer_conv_transpose)
    .grad({"X", "W", "B"}, gradient<kConvTransposeGrad>);

// The same in ONNX Runtime's training graphs and in ours.
ORTMODULE_OP("ai.ortmodule", ConvGrad, 1).apply(conv_grad);
ORTMODULE_OP("com.microsoft", ConvGrad, 1).apply(conv_grad);
ORTMODULE_OP("ai.ortmodule", ConvTransposeGrad, 1).apply(conv_transpose_grad);
ORTMODULE_OP("com.microsoft", ConvTransposeGrad, 1).apply(conv_transpose_grad);

}  // namespace ortmodule

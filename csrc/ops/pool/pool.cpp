// MaxPool, AveragePool and their global forms.
//
// Backward of MaxPool keeps the position of each maximum within its plane, as PyTorch numbers it, and the input's
// sizes; the input itself is not kept.
#include "ops/pool/window.h"

#include <algorithm>

#include "base/status.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

std::optional<Shape> pooled_shape(InferContext& c) {
  const PoolAttributes a(c.node());
  const Shape* x = c.shape(0);
  if (!x) return std::nullopt;
  if (x->size() < 3 || x->size() > 5 || !a.fits(x->size() - 2))
    c.error(str("X ", shape_text(*x), " does not fit the attributes: lists of ", a.rank(), " positive numbers"));
  Shape out{(*x)[0], (*x)[1]};
  for (size_t i = 0; i < a.rank(); ++i) {
    const Dim &size = (*x)[i + 2], stride(a.strides[i]);
    if (a.same()) {
      out.push_back(Dim::floor_div(size + Dim(a.strides[i] - 1), stride));
      continue;
    }
    const Dim span = size + Dim(a.pads[i] + a.pads[i + a.rank()] - a.extent(i));
    Dim count = Dim::floor_div(a.ceil ? span + Dim(a.strides[i] - 1) : span, stride) + Dim(1);
    // A window must start inside the input or its left pad.
    if (a.ceil && size.is_known() && (count.value() - 1) * a.strides[i] >= size.value() + a.pads[i])
      count = count - Dim(1);
    else if (a.ceil && !size.is_known() && a.strides[i] > 1)
      count = Dim::min(count, Dim::floor_div(size + Dim(a.pads[i] - 1), stride) + Dim(1));
    out.push_back(count);
  }
  return out;
}

void infer_max_pool(InferContext& c) {
  const auto out = pooled_shape(c);
  c.out(0, c.dtype(0), out);
  c.out(1, DType::kInt64, out);
  c.out(2, DType::kInt64, out);
}

void infer_global(InferContext& c) {
  const Shape* x = c.shape(0);
  std::optional<Shape> out;
  if (x) {
    if (x->size() < 3) c.error(str("X should be [N, C, d...], got ", shape_text(*x)));
    out = Shape(x->size(), Dim(1));
    (*out)[0] = (*x)[0];
    (*out)[1] = (*x)[1];
  }
  c.out(0, c.dtype(0), std::move(out));
}

// [N, C, d...] with N and C of dY; what the graph says of d stays.
void infer_declared(InferContext& c) {
  const PoolAttributes a(c.node());
  const Shape* dy = c.shape(0);
  if (dy && dy->size() != a.rank() + 2) c.error(str("dY ", shape_text(*dy), " does not fit the attributes"));
  Shape x = c.fresh_shape(a.rank() + 2);
  if (dy) std::copy_n(dy->begin(), 2, x.begin());
  c.out(0, c.dtype(0), std::move(x));
}

Attributes attributes_of(const Node& node) { return node.attributes(); }

void max_pool_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::MaxPoolGrad", {c.GO(0), c.saved("plane_indices"), c.sizes_of(c.I(0))},
                 attributes_of(c.node())));
}

void average_pool_gradient(GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::AveragePoolGrad", {c.GO(0), c.sizes_of(c.I(0))}, attributes_of(c.node())));
}

void pool_attributes(OpRecord& op) {
  op.attr("auto_pad", AttrKind::kString)
      .attr("ceil_mode", AttrKind::kInt)
      .attr("dilations", AttrKind::kInts)
      .required_attr("kernel_shape", AttrKind::kInts)
      .attr("pads", AttrKind::kInts)
      .attr("strides", AttrKind::kInts);
}

// The standard's Indices count over the whole of X; within a plane they are what is left over.
void max_pool_body(BodyContext& c) {
  if (c.node().get_int("storage_order", 0) != 0) return;
  BodyFormula f(c);
  const auto outputs = c.emit_n("MaxPool", {c.in(0)}, 2, c.node().attributes());
  c.out(0, outputs[0]);
  if (c.wants(1)) c.out(1, outputs[1]);
  if (!c.wants(2)) return;
  NodeArg* plane = c.emit("ReduceProd", {f.shape(c.in(0), 2)}, {{"keepdims", int64_t{0}}});
  c.out(2, c.emit("Mod", {outputs[1], plane}));
}

void max_pool_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* plane = c.emit("ReduceProd", {f.part(c.in(2), 2, INT64_MAX)}, {{"keepdims", int64_t{1}}});
  NodeArg* flat = f.concat({f.part(c.in(2), 0, 2), plane});
  NodeArg* dx = f.scatter_add(flat, f.reshape(c.in(1), {0, 0, -1}), f.reshape(c.in(0), {0, 0, -1}), 2);
  c.out(0, f.reshape(dx, c.in(2)));
}

// Each window's dY over its number of elements goes to all of them: a transposed convolution with ones, plane by
// plane, whose result begins at the left pad.
void average_pool_grad_body(BodyContext& c) {
  BodyFormula f(c);
  PoolAttributes a(c.node());
  if (a.ceil || a.same()) return;  // the last window's size and the pads depend on sizes
  const DType type = c.in(0)->type().dtype;
  const auto rank = static_cast<int64_t>(a.rank());
  NodeArg* spatial = f.part(c.in(1), 2, INT64_MAX);
  std::vector<int64_t> kernel_sizes{1, 1};
  kernel_sizes.insert(kernel_sizes.end(), a.kernel.begin(), a.kernel.end());
  NodeArg* ones = f.filled(c.ints(kernel_sizes), 1, type);
  const Attributes window{{"strides", a.strides}, {"dilations", a.dilations}};

  NodeArg* planes = f.reshape(c.in(0), f.concat({c.ints({-1, 1}), f.shape(c.in(0), 2)}));
  if (c.node().get_int("count_include_pad", 0)) {
    double count = 1;
    for (int64_t k : a.kernel) count *= static_cast<double>(k);
    planes = f.mul(planes, 1 / count);
  } else {
    Attributes padded = window;
    padded["pads"] = a.pads;
    planes = f.div(planes, c.emit("Conv", {f.filled(f.concat({c.ints({1, 1}), spatial}), 1, type), ones}, padded));
  }
  NodeArg* full = c.emit("ConvTranspose", {planes, ones}, window);
  const std::vector<int64_t> begins(a.pads.begin(), a.pads.begin() + rank);
  // What the windows did not reach at the end is zero; what they reached beyond is pad.
  NodeArg* reach = f.sub(f.shape(full, 2), c.ints(begins));
  std::vector<int64_t> cut{0, 0};
  for (int64_t p : begins) cut.push_back(-p);
  NodeArg* pads = f.concat({c.ints(cut), c.ints({0, 0}), f.sub(spatial, reach)});
  c.out(0, f.reshape(c.emit("Pad", {full, pads}), c.in(1)));
}

// Equal maxima share the gradient.
void global_max_pool_grad_body(BodyContext& c) {
  BodyFormula f(c);
  NodeArg* hits = f.cast(c.emit("Equal", {c.in(1), c.in(2)}), c.in(0)->type().dtype);
  c.out(0, f.mul(hits, f.div(c.in(0), f.sum_to(hits, c.in(2)))));
}

}  // namespace

// Indices are flat over the whole of X: planes in row-major (storage_order 0) or column-major order.
ORTMODULE_OP("", MaxPool, 1)
    .input("X")
    .output("Y")
    .output("Indices", Presence::kOptional)
    .saved("plane_indices")
    .apply(pool_attributes)
    .attr("storage_order", AttrKind::kInt)
    .infer(infer_max_pool)
    .body(max_pool_body)
    .passes(4)  // each element is read by several windows (128 x 64 pictures of 112 x 112 on an H200: 0.42 ms)
    .grad({"X"}, max_pool_gradient);

ORTMODULE_OP("ai.ortmodule", MaxPoolGrad, 1)
    .input("dY")
    .input("plane_indices")
    .host_input("x_sizes")
    .output("dX")
    .apply(pool_attributes)
    .attr("storage_order", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(2)); })
    .not_differentiable()
    .body(max_pool_grad_body);

ORTMODULE_OP("", AveragePool, 1)
    .input("X")
    .output("Y")
    .apply(pool_attributes)
    .attr("count_include_pad", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), pooled_shape(c)); })
    .grad({"X"}, average_pool_gradient);

ORTMODULE_OP("ai.ortmodule", AveragePoolGrad, 1)
    .input("dY")
    .host_input("x_sizes")
    .output("dX")
    .apply(pool_attributes)
    .attr("count_include_pad", AttrKind::kInt)
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(1)); })
    .not_differentiable()
    .body(average_pool_grad_body);

// As ONNX Runtime's training graphs have them: the sizes of X are those that the graph declares of dX. Indices are
// MaxPool's, flat over the whole of X.
ORTMODULE_OP("com.microsoft", MaxPoolGrad, 1)
    .input("dY")
    .input("Indices")
    .output("dX")
    .apply(pool_attributes)
    .attr("storage_order", AttrKind::kInt)
    .infer(infer_declared)
    .not_differentiable();

ORTMODULE_OP("com.microsoft", AveragePoolGrad, 1)
    .input("dY")
    .output("dX")
    .apply(pool_attributes)
    .attr("count_include_pad", AttrKind::kInt)
    .infer(infer_declared)
    .not_differentiable();

// The gradient is dY over the number of elements, spread by a view.
ORTMODULE_OP("", GlobalAveragePool, 1)
    .input("X")
    .output("Y")
    .infer(infer_global)
    .traits(kReduction)
    .grad({"X"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::GlobalAveragePoolGrad", {c.GO(0), c.sizes_of(c.I(0))}));
    });

ORTMODULE_OP("ai.ortmodule", GlobalAveragePoolGrad, 1)
    .input("dY")
    .host_input("x_sizes")
    .output("dX")
    .infer([](InferContext& c) { c.out(0, c.dtype(0), c.dims_value(1)); })
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg* count = c.emit("ReduceProd", {f.part(c.in(1), 2, INT64_MAX)}, {{"keepdims", int64_t{0}}});
      c.out(0, c.emit("Expand", {f.div(c.in(0), f.cast(count, c.in(0)->type().dtype)), c.in(1)}));
    });

ORTMODULE_OP("", GlobalMaxPool, 1)
    .input("X")
    .output("Y")
    .infer(infer_global)
    .traits(kReduction)
    .grad({"X"}, [](GradContext& c) { c.GI(0, c.emit("ai.ortmodule::GlobalMaxPoolGrad", {c.GO(0), c.I(0), c.O(0)})); });

// Equal maxima share the gradient.
ORTMODULE_OP("ai.ortmodule", GlobalMaxPoolGrad, 1)
    .input("dY")
    .input("X")
    .input("Y")
    .output("dX")
    .infer([](InferContext& c) { c.same_as(0, 1); })
    .not_differentiable()
    .body(global_max_pool_grad_body);

}  // namespace ortmodule

// Short names for what bodies are made of: a formula in a record's body then reads as the mathematics does.
//
// Every function emits one or two plain ONNX operators through BodyContext. Sizes are constants where the shapes are
// known and Shape nodes elsewhere, so that one body serves static and dynamic graphs.
#pragma once

#include <vector>

#include "records/grad_context.h"

namespace ortmodule {

class BodyFormula {
 public:
  explicit BodyFormula(BodyContext& context) : c(context) {}

  NodeArg* add(NodeArg* a, NodeArg* b) { return c.emit("Add", {a, b}); }
  NodeArg* sub(NodeArg* a, NodeArg* b) { return c.emit("Sub", {a, b}); }
  NodeArg* mul(NodeArg* a, NodeArg* b) { return c.emit("Mul", {a, b}); }
  NodeArg* div(NodeArg* a, NodeArg* b) { return c.emit("Div", {a, b}); }
  NodeArg* matmul(NodeArg* a, NodeArg* b) { return c.emit("MatMul", {a, b}); }
  // With a number in place of an operand.
  NodeArg* add(NodeArg* a, double b) { return add(a, c.scalar(b, a)); }
  NodeArg* mul(NodeArg* a, double b) { return b == 1 ? a : mul(a, c.scalar(b, a)); }
  // b - a
  NodeArg* from(double b, NodeArg* a) { return sub(c.scalar(b, a), a); }
  NodeArg* unary(const char* op, NodeArg* x) { return c.emit(op, {x}); }
  NodeArg* sigmoid(NodeArg* x) { return unary("Sigmoid", x); }
  NodeArg* where(NodeArg* condition, NodeArg* a, NodeArg* b) { return c.emit("Where", {condition, a, b}); }
  // x where the condition holds, else zero.
  NodeArg* keep(NodeArg* condition, NodeArg* x) { return where(condition, x, c.scalar(0, x)); }
  NodeArg* greater(NodeArg* x, double bound) { return c.emit("Greater", {x, c.scalar(bound, x)}); }
  NodeArg* less(NodeArg* x, double bound) { return c.emit("Less", {x, c.scalar(bound, x)}); }
  NodeArg* both(NodeArg* a, NodeArg* b) { return c.emit("And", {a, b}); }
  NodeArg* cast(NodeArg* x, DType dtype) {
    return x->type().dtype == dtype ? x : c.emit("Cast", {x}, {{"to", static_cast<int64_t>(dtype)}});
  }

  NodeArg* sum(NodeArg* x, const std::vector<int64_t>& axes, bool keepdims = true) {
    return c.emit("ReduceSum", {x, c.ints(axes)}, {{"keepdims", int64_t{keepdims}}});
  }
  NodeArg* mean(NodeArg* x, const std::vector<int64_t>& axes) {
    return c.emit("ReduceMean", {x, c.ints(axes)}, {{"keepdims", int64_t{1}}});
  }
  // Undoes broadcasting: sums x to the shape of `like`; nothing where the shapes are known to be equal.
  NodeArg* sum_to(NodeArg* x, NodeArg* like);
  // The same to an int64 vector of sizes.
  NodeArg* sum_to_sizes(NodeArg* x, NodeArg* sizes) { return c.emit("ai.ortmodule::ReduceSumTo", {x, sizes}); }

  NodeArg* transpose(NodeArg* x, const std::vector<int64_t>& perm) {
    return c.emit("Transpose", {x}, {{"perm", perm}});
  }
  // Swaps the last two axes; the rank must be known.
  NodeArg* matrix_transpose(NodeArg* x);
  NodeArg* unsqueeze(NodeArg* x, const std::vector<int64_t>& axes) { return c.emit("Unsqueeze", {x, c.ints(axes)}); }
  NodeArg* squeeze(NodeArg* x, const std::vector<int64_t>& axes) { return c.emit("Squeeze", {x, c.ints(axes)}); }
  // A size of 0 copies the input's, one of -1 follows from the others.
  NodeArg* reshape(NodeArg* x, const std::vector<int64_t>& sizes) { return reshape(x, c.ints(sizes)); }
  NodeArg* reshape(NodeArg* x, NodeArg* sizes) { return c.emit("Reshape", {x, sizes}); }
  NodeArg* reshape_like(NodeArg* x, NodeArg* like) {
    return c.emit("Reshape", {x, shape(like)}, {{"allowzero", int64_t{1}}});
  }
  NodeArg* concat(const std::vector<NodeArg*>& parts, int64_t axis = 0) {
    return parts.size() == 1 ? parts[0] : c.emit("Concat", parts, {{"axis", axis}});
  }
  // int64 vector of the sizes of axes [start, end) (to the last: INT64_MAX).
  NodeArg* shape(NodeArg* x, int64_t start = 0, int64_t end = INT64_MAX);
  // Elements [start, end) of an int64 vector.
  NodeArg* part(NodeArg* sizes, int64_t start, int64_t end);
  NodeArg* filled(NodeArg* sizes, double value, DType dtype);
  // 0 .. size - 1 as an int64 vector; `size` is an int64 vector of one element.
  NodeArg* range(NodeArg* size) { return c.emit("Range", {c.scalar_int(0), squeeze(size, {0}), c.scalar_int(1)}); }
  // Zeros of `sizes` to which `updates` are added at `indices` along `axis` (ScatterElements).
  NodeArg* scatter_add(NodeArg* sizes, NodeArg* indices, NodeArg* updates, int64_t axis);

  // The rank of x; throws kUnsupported, naming the node, where it is not known.
  int64_t rank(const NodeArg* x) const;

  BodyContext& c;
};

// The gradient of y = (x - mean) * rstd with statistics over `axes`, of which dy is already scaled:
// rstd * (g - mean(g) - xhat * mean(g * xhat)); without `centered` the middle term is not there.
NodeArg* normalization_dx(BodyFormula& f, NodeArg* g, NodeArg* xhat, NodeArg* rstd, const std::vector<int64_t>& axes,
                          bool centered);

}  // namespace ortmodule

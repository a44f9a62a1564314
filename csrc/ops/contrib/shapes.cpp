// What ONNX Runtime's training graphs do with shapes, in com.microsoft: BroadcastGradientArgs and View.
#include "base/status.h"
#include "ops/contrib/broadcast_axes.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// The axes over which the gradient of a broadcast operand is summed, the last axis first; empty where none is.
ORTMODULE_OP("com.microsoft", BroadcastGradientArgs, 1)
    .host_input("a_shape")
    .host_input("b_shape")
    .output("a_axes", Presence::kOptional)
    .output("b_axes", Presence::kOptional)
    .traits(kHostOutput)
    .infer([](InferContext& c) {
      const Shape unknown = c.fresh_shape(2);
      for (size_t i = 0; i < 2; ++i) c.out(i, DType::kInt64, Shape{unknown[i]});
      const auto a = c.ints_value(0), b = c.ints_value(1);
      if (!a || !b) return;
      int64_t clash = -1;
      const auto axes = broadcast_axes(*a, *b, clash);
      if (clash >= 0) c.error(str("the shapes differ at axis ", clash));
      for (size_t i = 0; i < 2; ++i) {
        c.out(i, DType::kInt64, Shape{Dim(static_cast<int64_t>(axes[i].size()))});
        c.known(i, {axes[i].begin(), axes[i].end()});
      }
    })
    .not_differentiable();

// Consecutive parts of the input's elements, each in a shape of its own.
ORTMODULE_OP("com.microsoft", View, 1)
    .input("input")
    .host_input("shapes", Presence::kVariadic)
    .output("outputs", Presence::kVariadic)
    .infer([](InferContext& c) {
      if (c.node().outputs().size() + 1 > c.input_count())
        c.error(str("has ", c.node().outputs().size(), " outputs for ", c.input_count() - 1, " shapes"));
      for (size_t i = 0; i < c.node().outputs().size(); ++i) {
        std::optional<Shape> y;
        if (const auto dims = c.dims_value(i + 1)) y = Shape(dims->begin(), dims->end());
        c.out(i, c.dtype(0), std::move(y));
      }
    })
    // The parts' gradients side by side, zeros where none flows in and where no output looks.
    .grad({"input"}, [](GradContext& c) {
      std::vector<NodeArg*> parts;
      for (size_t i = 0; i + 1 < c.input_count(); ++i) {
        NodeArg* zero = c.scalar(0, c.I(0));
        NodeArg* part = c.GO(i) ? c.GO(i) : c.emit("Expand", {zero, c.I(i + 1)});
        parts.push_back(c.emit("Reshape", {part, c.ints({-1})}));
      }
      NodeArg* flat = c.emit("Concat", parts, {{"axis", int64_t{0}}});
      c.GI(0, c.emit("Reshape", {flat, c.sizes_of(c.I(0))}, {{"allowzero", int64_t{1}}}));
    });

}  // namespace
}  // namespace ortmodule

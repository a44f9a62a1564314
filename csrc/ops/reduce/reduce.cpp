// Reductions over axes: ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceSumSquare,
// ReduceLogSum, ReduceLogSumExp, and ReduceSumTo, which undoes a broadcast whose axes are known at run time only.
//
// `axes` is an optional input in host memory: absent or empty means all axes, or none with noop_with_empty_axes.
// Gradients work on the small, reduced tensor as long as they can and expand at the end, where Expand is a view.
#include <cmath>

#include "base/status.h"
#include "records/body_formula.h"
#include "records/fusion_context.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/row_rule.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

// Which axes of a known rank are reduced; nothing when that is decided at run time.
std::optional<std::vector<bool>> reduced_axes(InferContext& c, size_t rank) {
  if (!c.has(1)) return std::vector<bool>(rank, c.attr_int("noop_with_empty_axes", 0) == 0);
  const auto axes = c.ints_value(1);
  if (!axes) return std::nullopt;
  if (axes->empty()) return std::vector<bool>(rank, c.attr_int("noop_with_empty_axes", 0) == 0);
  std::vector<bool> out(rank, false);
  for (int64_t a : *axes) out[c.axis(a, rank)] = true;
  return out;
}

void infer_reduce(InferContext& c) {
  const bool keep = c.attr_int("keepdims", 1) != 0;
  if (!c.shape(0)) {
    c.out(0, c.dtype(0),
          !keep && !c.has(1) && !c.attr_int("noop_with_empty_axes", 0) ? std::optional<Shape>(Shape{}) : std::nullopt);
    return;
  }
  const Shape& x = *c.shape(0);
  const auto reduced = reduced_axes(c, x.size());
  if (!reduced) {
    c.out(0, c.dtype(0), keep ? std::optional<Shape>(c.fresh_shape(x.size())) : std::nullopt);
    return;
  }
  Shape out;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(*reduced)[i])
      out.push_back(x[i]);
    else if (keep)
      out.emplace_back(1);
  }
  c.out(0, c.dtype(0), std::move(out));
}

void reduction(OpRecord& r) {
  r.input("data")
      .host_input("axes", Presence::kOptional)
      .output("reduced")
      .attr("keepdims", AttrKind::kInt)
      .attr("noop_with_empty_axes", AttrKind::kInt)
      .infer(infer_reduce)
      .traits(kReduction)
      .rows(along_axes_input<1, true>);
}

// A value of the output's shape with the reduced axes back as ones, so that it broadcasts against the input.
NodeArg* restore_axes(GradContext& c, NodeArg* value) {
  if (c.node().get_int("keepdims", 1) || !c.I(1)) return value;
  return c.emit("Unsqueeze", {value, c.I(1)});
}

NodeArg* expand_to_input(GradContext& c, NodeArg* value) { return c.emit("Expand", {value, c.sizes_of(c.I(0))}); }

// The product of a value's sizes, which backward knows without the value.
NodeArg* element_count(GradContext& c, const NodeArg* value, DType dtype) {
  return c.cast(c.emit("ReduceProd", {c.sizes_of(value)}, {{"keepdims", int64_t{0}}}), dtype);
}

// How many elements went into one of the output, as a 0-d value of `dtype`.
NodeArg* reduced_count(GradContext& c, DType dtype) {
  const TypeInfo &x = c.I(0)->type(), &y = c.O(0)->type();
  if (x.shape && y.shape) {
    const Dim all = product(*x.shape, 0, x.shape->size()), kept = product(*y.shape, 0, y.shape->size());
    if (const auto count = Dim::exact_div(all, kept)) {
      if (count->is_known()) return c.graph().constant(TensorData::scalar(dtype, static_cast<double>(count->value())));
      // A size that only the data say is no expression over the inputs' sizes; it has to be read in forward.
      const Node* sizes = c.sizes_of(c.I(0))->producer();
      if (!sizes || sizes->op() == "Sizes") return c.cast(c.size_scalar(*count), dtype);
    }
  }
  return c.emit("Div", {element_count(c, c.I(0), dtype), element_count(c, c.O(0), dtype)});
}

// Whether a reduction leaves rows or columns of its input, by shapes alone; the last axis must be more than a one.
std::optional<OutputForm> reduced_form(const Node& node) {
  const auto &from = node.input(0)->type().shape, &to = node.output(0)->type().shape;
  if (!from || !to || from->empty() || from->back() == Dim(1)) return std::nullopt;
  const auto begins_alike = [&] { return std::equal(from->begin(), from->end() - 1, to->begin()); };
  const auto ones = [&](size_t n) {
    return std::all_of(to->begin(), to->begin() + static_cast<long>(n), [](const Dim& d) { return d == Dim(1); });
  };
  const size_t rank = from->size();
  if (to->size() == rank && to->back() == Dim(1) && begins_alike()) return OutputForm::kRow;
  if (rank > 1 && to->size() == 1 && to->back() == from->back()) return OutputForm::kColumn;
  if (rank > 1 && to->size() == rank && to->back() == from->back() && ones(rank - 1) &&
      !std::equal(from->begin(), from->end(), to->begin()))
    return OutputForm::kColumnKept;
  return std::nullopt;
}

// The axes decide, not the shapes: [n, n] summed over either axis gives [n].
bool axes_leave(FusionContext& c, OutputForm form) {
  const auto axes = c.ints(1);
  if (!axes || axes->empty()) return false;
  const int64_t rank = static_cast<int64_t>(c.node().input(0)->type().shape->size());
  std::vector<bool> reduced(rank, false);
  for (int64_t axis : *axes) reduced.at(axis < 0 ? axis + rank : axis) = true;
  const bool row = form == OutputForm::kRow;
  for (int64_t i = 0; i < rank; ++i)
    if (reduced[i] != (i == rank - 1 ? row : !row)) return false;
  return true;
}

bool fuse_sum(FusionContext& c) {
  const auto form = reduced_form(c.node());
  if (!form || !axes_leave(c, *form)) return false;
  const bool row = *form == OutputForm::kRow;
  c.out(0, row ? c.emit(Opcode::kRowSum, c.in(0)) : c.in(0), *form);
  return true;
}

ORTMODULE_OP("", ReduceSum, 13)
    .apply(reduction)
    .older(1, 12, upgrade_axes)
    .grad({"data"}, [](GradContext& c) { c.GI(0, expand_to_input(c, restore_axes(c, c.GO(0)))); })
    .fuses_rows(fuse_sum);

// The count may not be representable in 16 bits: the division then happens in float.
ORTMODULE_OP("", ReduceMean, 18)
    .apply(reduction)
    .older(1, 17, upgrade_axes)
    .grad({"data"},
          [](GradContext& c) {
            const DType type = c.GO(0)->type().dtype, wide = is_reduced_floating(type) ? DType::kFloat : type;
            NodeArg* share = c.emit("Div", {c.cast(c.GO(0), wide), reduced_count(c, wide)});
            c.GI(0, expand_to_input(c, restore_axes(c, c.cast(share, type))));
          })
    .fuses_rows([](FusionContext& c) {
      if (reduced_form(c.node()) != OutputForm::kRow || !axes_leave(c, OutputForm::kRow)) return false;
      c.out(0, c.emit(Opcode::kRowMean, c.in(0)), OutputForm::kRow);
      return true;
    });

// Elements that equal the extreme share dy evenly, as amax and amin do in PyTorch.
void extreme_grad(GradContext& c) {
  NodeArg *dy = restore_axes(c, c.GO(0)), *y = restore_axes(c, c.O(0));
  c.GI(0, c.emit("ai.ortmodule::ReduceExtremeGrad", {dy, c.I(0), y}));
}
ORTMODULE_OP("", ReduceMax, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, extreme_grad);
ORTMODULE_OP("", ReduceMin, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, extreme_grad);

void infer_like_second(InferContext& c) { c.same_as(0, 1); }

// dy and y broadcast against x: reduced axes have size one.
ORTMODULE_OP("ai.ortmodule", ReduceExtremeGrad, 1)
    .input("dY")
    .input("X")
    .input("Y")
    .output("dX")
    .infer(infer_like_second)
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg* hits = f.cast(c.emit("Equal", {c.in(1), c.in(2)}), c.in(0)->type().dtype);
      c.out(0, f.mul(hits, f.div(c.in(0), f.sum_to(hits, c.in(2)))));
    });

ORTMODULE_OP("", ReduceProd, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  c.GI(0, c.emit("ai.ortmodule::ReduceProdGrad", {restore_axes(c, c.GO(0)), c.I(0), c.I(1)},
                 {{"noop_with_empty_axes", c.node().get_int("noop_with_empty_axes", 0)}}));
});
ORTMODULE_OP("ai.ortmodule", ReduceProdGrad, 1)
    .input("dY")
    .input("X")
    .host_input("axes", Presence::kOptional)
    .output("dX")
    .attr("noop_with_empty_axes", AttrKind::kInt)
    .traits(kBodyOfValues)  // where a factor is zero, the product of the others has a derivative, and its body has none
    .infer(infer_like_second)
    .not_differentiable()
    .body([](BodyContext& c) {
      BodyFormula f(c);
      NodeArg* x = c.in(1);
      const auto over_axes = [&](const char* op, NodeArg* value) {
        return c.emit(
            op, {value, c.in(2)},
            {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", c.node().get_int("noop_with_empty_axes", 0)}});
      };
      // The product of the others is that of all but zeros, over x where x is none, and zero beside another zero.
      NodeArg* zero = c.emit("Equal", {x, c.scalar(0, x)});
      NodeArg* zeros = over_axes("ReduceSum", f.cast(zero, x->type().dtype));
      NodeArg* factors = f.where(zero, c.scalar(1, x), x);
      NodeArg* others = f.div(over_axes("ReduceProd", factors), factors);
      NodeArg* more = f.sub(zeros, f.cast(zero, x->type().dtype));
      c.out(0, f.mul(c.in(0), f.where(f.greater(more, 0), c.scalar(0, x), others)));
    });

ORTMODULE_OP("", ReduceL1, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.emit("Sign", {c.I(0)}), restore_axes(c, c.GO(0))}));
});

// dx = x dy / y, zero where the norm is zero.
ORTMODULE_OP("", ReduceL2, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  NodeArg* zero = c.scalar(0, c.O(0));
  NodeArg* ratio = c.emit("Where", {c.emit("Equal", {c.O(0), zero}), zero, c.emit("Div", {c.GO(0), c.O(0)})});
  c.GI(0, c.emit("Mul", {c.I(0), restore_axes(c, ratio)}));
});

ORTMODULE_OP("", ReduceSumSquare, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  c.GI(0, c.emit("Mul", {c.I(0), restore_axes(c, c.emit("Mul", {c.GO(0), c.scalar(2, c.GO(0))}))}));
});

// dx = dy / sum(x)
ORTMODULE_OP("", ReduceLogSum, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  c.GI(0, expand_to_input(c, restore_axes(c, c.emit("Div", {c.GO(0), c.emit("Exp", {c.O(0)})}))));
});

// dx = dy exp(x - y), which is no number in a row of -inf, as PyTorch's.
ORTMODULE_OP("", ReduceLogSumExp, 18).apply(reduction).older(1, 17, upgrade_axes).grad({"data"}, [](GradContext& c) {
  NodeArg* weight = c.emit("Exp", {c.emit("Sub", {c.I(0), restore_axes(c, c.O(0))})});
  c.GI(0, c.emit("Mul", {weight, restore_axes(c, c.GO(0))}));
});

// Sums x to `sizes`, a shape that broadcasts to x's.
ORTMODULE_OP("ai.ortmodule", ReduceSumTo, 1)
    .input("X")
    .host_input("sizes")
    .output("Y")
    .traits(kReduction | kView)
    .infer([](InferContext& c) {
      std::optional<Shape> shape;
      if (const auto dims = c.dims_value(1))
        shape = *dims;
      else if (const Shape* s = c.shape(1); s && s->size() == 1 && (*s)[0].is_known())
        shape = c.fresh_shape(static_cast<size_t>((*s)[0].value()));
      c.out(0, c.dtype(0), std::move(shape));
    })
    .grad({"X"}, [](GradContext& c) { c.GI(0, expand_to_input(c, c.GO(0))); })
    .body([](BodyContext& c) {
      const TypeInfo &from = c.in(0)->type(), &to = c.node().output(0)->type();
      ORTMODULE_CHECK(from.shape && to.shape && from.shape->size() >= to.shape->size(), kUnsupported,
                      "ReduceSumTo has no form in plain ONNX without known ranks (", c.node().describe(), ")");
      const size_t extra = from.shape->size() - to.shape->size();
      std::vector<int64_t> known;
      bool all_known = true;
      for (size_t i = 0; i < from.shape->size(); ++i) {
        const bool equal = i >= extra && (*from.shape)[i] == (*to.shape)[i - extra];
        const bool one = i >= extra && (*to.shape)[i - extra].is_known() && (*to.shape)[i - extra].value() == 1;
        if (i < extra || (one && !equal)) known.push_back(static_cast<int64_t>(i));
        all_known = all_known && (i < extra || equal || one);
      }
      NodeArg* axes = c.ints(known);
      if (!all_known) {  // an axis is summed where its size is 1, which the run will tell
        BodyFormula f(c);
        NodeArg* ones = c.emit("NonZero", {c.emit("Equal", {c.in(1), c.ints({1})})});
        std::vector<int64_t> leading;
        for (size_t i = 0; i < extra; ++i) leading.push_back(static_cast<int64_t>(i));
        NodeArg* found = f.add(f.reshape(ones, {-1}), c.ints({static_cast<int64_t>(extra)}));
        axes = leading.empty() ? found : f.concat({c.ints(leading), found});
      }
      NodeArg* summed =
          c.emit("ReduceSum", {c.in(0), axes}, {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{1}}});
      c.out(0, c.emit("Reshape", {summed, c.in(1)}, {{"allowzero", int64_t{1}}}));
    });

}  // namespace
}  // namespace ortmodule

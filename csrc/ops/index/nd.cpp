// Access by tuples of positions: GatherND, ScatterND, and torch's advanced indexing as Index and IndexPut.
//
// Index(x, i0, i1, ...){dims}: the index tensors broadcast together and take the place of the axes `dims` when these
// are neighbours, and come first otherwise; other axes stay whole.
#include <algorithm>

#include "base/status.h"
#include "ops/index/scatter_gradient.h"
#include "records/body_formula.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

ORTMODULE_OP("", GatherND, 11)
    .input("data")
    .input("indices")
    .output("output")
    .attr("batch_dims", AttrKind::kInt)
    .no_grad({"indices"})
    .infer([](InferContext& c) {
      const Shape *x = c.shape(0), *indices = c.shape(1);
      if (!x || !indices || indices->empty() || !indices->back().is_known()) {
        c.out(0, c.dtype(0), std::nullopt);
        return;
      }
      const auto batch = static_cast<size_t>(c.attr_int("batch_dims", 0));
      const size_t taken = batch + static_cast<size_t>(indices->back().value());
      if (taken > x->size()) c.error(str("positions name ", taken, " axes of an input of shape ", shape_text(*x)));
      Shape out(indices->begin(), indices->end() - 1);
      out.insert(out.end(), x->begin() + static_cast<std::ptrdiff_t>(taken), x->end());
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"data"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::GatherNDGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))},
                     {{"batch_dims", c.node().get_int("batch_dims", 0)}}));
    });

// Output 0 has the elements of `input` as its sizes and the type of input `like`.
void infer_sizes_at(InferContext& c, size_t input, size_t like = 0) {
  std::optional<Shape> shape;
  if (const auto dims = c.dims_value(input))
    shape = *dims;
  else if (const Shape* length = c.shape(input); length && length->size() == 1 && (*length)[0].is_known())
    shape = c.fresh_shape(static_cast<size_t>((*length)[0].value()));
  c.out(0, c.dtype(like), std::move(shape));
}

ORTMODULE_OP("ai.ortmodule", GatherNDGrad, 1)
    .input("dY")
    .input("indices")
    .host_input("sizes")
    .output("dX")
    .attr("batch_dims", AttrKind::kInt)
    .not_differentiable()
    .infer([](InferContext& c) { infer_sizes_at(c, 2); })
    .body([](BodyContext& c) {
      if (c.node().get_int("batch_dims", 0) != 0) return;  // ScatterND has no batch
      BodyFormula f(c);
      NodeArg* zeros = f.filled(c.in(2), 0, c.in(0)->type().dtype);
      NodeArg* indices = f.cast(c.in(1), DType::kInt64);
      c.out(0, c.emit("ScatterND", {zeros, indices, c.in(0)}, {{"reduction", std::string("add")}}));
    });

// As ONNX Runtime's training graphs have it.
ORTMODULE_OP("com.microsoft", GatherNDGrad, 1)
    .host_input("shape")
    .input("indices")
    .input("update")
    .output("output")
    .attr("batch_dims", AttrKind::kInt)
    .not_differentiable()
    .infer([](InferContext& c) { infer_sizes_at(c, 0, 2); });

ORTMODULE_OP("", ScatterND, 11)
    .input("data")
    .input("indices")
    .input("updates")
    .output("output")
    .attr("reduction", AttrKind::kString)
    .no_grad({"indices"})
    .infer(infer_same)
    .grad({"data", "updates"}, [](GradContext& c) { scatter_gradient(c, "GatherND", {}); });

// The axes that are indexed, non-negative.
std::vector<size_t> indexed_axes(InferContext& c, size_t rank, size_t indices) {
  const std::vector<int64_t> dims = c.node().get_ints("dims");
  if (dims.size() != indices) c.error(str(indices, " index tensors for ", dims.size(), " axes"));
  std::vector<size_t> out;
  for (int64_t d : dims) out.push_back(c.axis(d, rank));
  return out;
}

void infer_index(InferContext& c) {
  const Shape* x = c.shape(0);
  std::optional<Shape> common = Shape{};
  for (size_t i = 1; i < c.input_count(); ++i) common = c.broadcast(common ? &*common : nullptr, c.shape(i));
  if (!x || !common) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  const std::vector<size_t> axes = indexed_axes(c, x->size(), c.input_count() - 1);
  bool neighbours = true;
  for (size_t k = 1; k < axes.size(); ++k) neighbours = neighbours && axes[k] == axes[k - 1] + 1;
  Shape out;
  for (size_t i = 0; i < x->size(); ++i)
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) out.push_back((*x)[i]);
  const size_t place = neighbours && !axes.empty() ? axes[0] : 0;
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(place), common->begin(), common->end());
  c.out(0, c.dtype(0), std::move(out));
}

std::vector<NodeArg*> with_indices(GradContext& c, std::vector<NodeArg*> inputs, size_t first) {
  for (size_t i = first; i < c.input_count(); ++i) inputs.push_back(c.I(i));
  return inputs;
}

// Index and IndexPut in plain ONNX: with the indexed axes moved to the front, tuples of positions are what GatherND and
// ScatterND take. The positions' axes are then the first of the result and may belong elsewhere.
struct TupleForm {
  std::vector<int64_t> to_front;  // permutation of x
  std::vector<int64_t> back;      // permutation of GatherND's result; empty: it is right as it is
  NodeArg* tuples;
};

TupleForm tuple_form(BodyContext& c, size_t first_index) {
  const std::string unknown = "advanced indexing has no form in plain ONNX without known ranks (";
  const size_t count = c.node().inputs().size() - first_index;
  ORTMODULE_CHECK(c.in(0)->type().shape, kUnsupported, unknown, c.node().describe(), ")");
  const auto rank = static_cast<int64_t>(c.in(0)->type().shape->size());
  std::vector<int64_t> dims = c.node().get_ints("dims");
  for (int64_t& d : dims) d = d < 0 ? d + rank : d;
  TupleForm form{dims, {}, nullptr};
  for (int64_t i = 0; i < rank; ++i)
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) form.to_front.push_back(i);

  NodeArg* sum = c.in(first_index);  // has the broadcast shape
  for (size_t i = 1; i < count; ++i) sum = c.emit("Add", {sum, c.in(first_index + i)});
  NodeArg* shape = c.emit("Shape", {sum});
  std::vector<NodeArg*> columns;
  for (size_t i = 0; i < count; ++i)
    columns.push_back(c.emit("Unsqueeze", {c.emit("Expand", {c.in(first_index + i), shape}), c.ints({-1})}));
  form.tuples = c.emit("Concat", columns, {{"axis", int64_t{-1}}});

  bool neighbours = true;
  for (size_t k = 1; k < dims.size(); ++k) neighbours = neighbours && dims[k] == dims[k - 1] + 1;
  if (!neighbours || dims[0] == 0) return form;
  ORTMODULE_CHECK(sum->type().shape, kUnsupported, unknown, c.node().describe(), ")");
  const auto lead = static_cast<int64_t>(sum->type().shape->size());
  for (int64_t i = 0; i < dims[0]; ++i) form.back.push_back(lead + i);
  for (int64_t i = 0; i < lead; ++i) form.back.push_back(i);
  for (int64_t i = lead + dims[0]; i < lead + rank - static_cast<int64_t>(count); ++i) form.back.push_back(i);
  return form;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& perm) {
  std::vector<int64_t> out(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) out[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return out;
}

NodeArg* index_body(BodyContext& c, NodeArg* x, const TupleForm& form) {
  NodeArg* y = c.emit("GatherND", {c.emit("Transpose", {x}, {{"perm", form.to_front}}), form.tuples});
  return form.back.empty() ? y : c.emit("Transpose", {y}, {{"perm", form.back}});
}

ORTMODULE_OP("ai.ortmodule", Index, 1)
    .input("X")
    .variadic_input("indices")
    .output("Y")
    .required_attr("dims", AttrKind::kInts)
    .no_grad({"indices"})
    .infer(infer_index)
    .grad({"X"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::IndexGrad", with_indices(c, {c.GO(0), c.sizes_of(c.I(0))}, 1),
                           {{"dims", c.node().get_ints("dims")}}));
          })
    .body([](BodyContext& c) { c.out(0, index_body(c, c.in(0), tuple_form(c, 1))); });

ORTMODULE_OP("ai.ortmodule", IndexGrad, 1)
    .input("dY")
    .host_input("sizes")
    .variadic_input("indices")
    .output("dX")
    .required_attr("dims", AttrKind::kInts)
    .not_differentiable()
    .infer([](InferContext& c) { infer_sizes_at(c, 1); })
    .body([](BodyContext& c) {
      BodyFormula f(c);
      std::vector<NodeArg*> inputs{f.filled(c.in(1), 0, c.in(0)->type().dtype), c.in(0)};
      for (size_t i = 2; i < c.node().inputs().size(); ++i) inputs.push_back(c.in(i));
      c.out(0, c.emit("ai.ortmodule::IndexPut", inputs,
                      {{"dims", c.node().get_ints("dims")}, {"accumulate", int64_t{1}}}));
    });

// x with `values` (broadcast) written or, with accumulate, added where Index(x, indices...) reads.
ORTMODULE_OP("ai.ortmodule", IndexPut, 1)
    .input("X")
    .input("values")
    .variadic_input("indices")
    .output("Y")
    .required_attr("dims", AttrKind::kInts)
    .attr("accumulate", AttrKind::kInt)
    .no_grad({"indices"})
    .infer(infer_same)
    .grad({"X", "values"},
          [](GradContext& c) {
            const std::vector<int64_t> dims = c.node().get_ints("dims");
            if (c.needs(0)) {
              NodeArg* dx = c.GO(0);
              if (!c.node().get_int("accumulate", 0))
                dx = c.emit("ai.ortmodule::IndexPut", with_indices(c, {dx, c.scalar(0, dx)}, 2), {{"dims", dims}});
              c.GI(0, dx);
            }
            if (c.needs(1)) {
              NodeArg* read = c.emit("ai.ortmodule::Index", with_indices(c, {c.GO(0)}, 2), {{"dims", dims}});
              c.GI(1, c.reduce_to(read, c.I(1)));
            }
          })
    .body([](BodyContext& c) {
      const TupleForm form = tuple_form(c, 2);
      // What Index reads has the shape to which the values broadcast.
      NodeArg* values = c.emit("Expand", {c.in(1), c.emit("Shape", {index_body(c, c.in(0), form)})});
      if (!form.back.empty()) values = c.emit("Transpose", {values}, {{"perm", inverse(form.back)}});
      NodeArg* moved = c.emit("Transpose", {c.in(0)}, {{"perm", form.to_front}});
      const std::string reduction = c.node().get_int("accumulate", 0) ? "add" : "none";
      NodeArg* written = c.emit("ScatterND", {moved, form.tuples, values}, {{"reduction", reduction}});
      c.out(0, c.emit("Transpose", {written}, {{"perm", inverse(form.to_front)}}));
    });

ORTMODULE_OP("", NonZero, 9).input("X").output("Y").not_differentiable().infer([](InferContext& c) {
  if (!c.shape(0)) {
    c.out(0, DType::kInt64, c.fresh_shape(2));
    return;
  }
  c.out(0, DType::kInt64, Shape{Dim(static_cast<int64_t>(c.shape(0)->size())), c.fresh_shape(2)[1]});
});

}  // namespace
}  // namespace ortmodule

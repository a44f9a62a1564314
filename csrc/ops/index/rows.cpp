// Rows that are worth computing: which of a tensor's leading positions a loss or an attention reads, and the way into
// the compact form and back.
//
// Note [Compact rows]
// A value x[d1 .. dl, rest...] has d1 * .. * dl rows, numbered in row-major order; `lead` is l. A list `rows`[m] of
// ascending row numbers says which of them are computed: GatherRows makes x[m, rest...], SpreadRows goes back. m
// depends on the data, so the lists are rounded up to a sixteenth of all rows, less for short lists: the sizes that the
// memory pattern sees are few, and m is never 0. What fills a list up are rows that nobody needs, which is as right as
// leaving them away. A list of nearly all rows becomes the list of all, and then both operators are views.
//
// Not here: which part of a graph runs on compact rows (transforms/row_region.h).
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

size_t lead_of(InferContext& c) { return static_cast<size_t>(c.attr_int("lead", 1)); }

Dim row_count(InferContext& c, size_t rows) {
  const Shape* shape = c.shape_of_rank(rows, 1);
  return shape ? (*shape)[0] : c.fresh_dim();
}

void infer_gather_rows(InferContext& c) {
  const Shape* x = c.shape(0);
  if (!x) return c.out(0, c.dtype(0), std::nullopt);
  const size_t lead = lead_of(c);
  if (x->size() < lead) c.error(str("x should have at least ", lead, " dimensions, got ", shape_text(*x)));
  Shape out{row_count(c, 1)};
  out.insert(out.end(), x->begin() + static_cast<std::ptrdiff_t>(lead), x->end());
  c.out(0, c.dtype(0), std::move(out));
}

// Output 0: [the first `lead` of the sizes..., rest of input 0].
void infer_spread(InferContext& c) {
  const Shape* x = c.shape(0);
  const auto sizes = c.dims_value(2);
  if (!x || !sizes || x->empty()) return c.out(0, c.dtype(0), std::nullopt);
  if (sizes->size() < lead_of(c)) c.error(str("expected at least ", lead_of(c), " sizes, got ", sizes->size()));
  Shape out(sizes->begin(), sizes->begin() + static_cast<std::ptrdiff_t>(lead_of(c)));
  out.insert(out.end(), x->begin() + 1, x->end());
  c.out(0, c.dtype(0), std::move(out));
}

// Only where rows are all, which a step decides.
bool taken_out(const Node&) { return false; }

}  // namespace

// labels of any shape -> rows[m]: the positions whose label is not ignore_index, and some others.
ORTMODULE_OP("ai.ortmodule", LabelRows, 1)
    .host_input("labels")
    .output("rows")
    .required_attr("ignore_index", AttrKind::kInt)
    .traits(kHostOutput | kWaitsItself)
    .infer([](InferContext& c) { c.out(0, DType::kInt64, Shape{c.fresh_dim()}); })
    .not_differentiable();

// Closed under attention: the rows in `seeds`, all that these attend to, and so on, of batch * length rows.
// `sources` are `seeds` lists of rows, then one mask per attention (boolean or additive, of up to four dimensions
// [batch, heads, queries, keys]); causal[i] hides later keys besides; unmasked attentions have no mask and the flag
// masked[i] = 0.
ORTMODULE_OP("ai.ortmodule", AttendedRows, 1)
    .host_input("sizes")
    .host_input("sources", Presence::kVariadic)
    .output("rows")
    .required_attr("seeds", AttrKind::kInt)
    .required_attr("causal", AttrKind::kInts)
    .required_attr("masked", AttrKind::kInts)
    .traits(kHostOutput)
    .infer([](InferContext& c) { c.out(0, DType::kInt64, Shape{c.fresh_dim()}); })
    .not_differentiable();

// Positions of `inner` in `outer`, both ascending; every inner row is in outer.
ORTMODULE_OP("ai.ortmodule", RelativeRows, 1)
    .host_input("inner")
    .host_input("outer")
    .output("positions")
    .traits(kHostOutput)
    .infer([](InferContext& c) { c.out(0, DType::kInt64, Shape{row_count(c, 0)}); })
    .not_differentiable();

// Rows of a slice [.., start : start + kept] as rows of what was sliced along the last leading axis of size `length`;
// sizes = [length, kept].
ORTMODULE_OP("ai.ortmodule", SlicedRows, 1)
    .host_input("rows")
    .host_input("sizes")
    .output("Y")
    .required_attr("start", AttrKind::kInt)
    .traits(kHostOutput)
    .infer([](InferContext& c) { c.out(0, DType::kInt64, Shape{row_count(c, 0)}); })
    .not_differentiable();

// x[d1 .. dl, rest...], rows[m] -> y[m, rest...]; a view where rows are all.
ORTMODULE_OP("ai.ortmodule", GatherRows, 1)
    .input("x")
    .input("rows")
    .output("y")
    .attr("lead", AttrKind::kInt)
    .traits(kView)
    .shares(taken_out)
    .infer(infer_gather_rows)
    .no_grad({"rows"})
    .grad({"x"},
          [](GradContext& c) {
            c.GI(0, c.emit("ai.ortmodule::GatherRowsGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))},
                           {{"lead", c.node().get_int("lead", 1)}}));
          })
    .body([](BodyContext& c) {
      // [-1, rest...] by a Reshape that flattens the leading dims two at a time.
      const int64_t lead = c.node().get_int("lead", 1);
      NodeArg* flat = c.in(0);
      if (lead > 1) {
        NodeArg* rest = c.emit("Shape", {flat}, {{"start", lead}});
        flat = c.emit("Reshape", {flat, c.emit("Concat", {c.ints({-1}), rest}, {{"axis", int64_t{0}}})});
      }
      c.out(0, c.emit("Gather", {flat, c.in(1)}, {{"axis", int64_t{0}}}));
    });

// dy[m, rest...] -> dx[d1 .. dl, rest...], zero outside rows; sizes begin with d1 .. dl.
ORTMODULE_OP("ai.ortmodule", GatherRowsGrad, 1)
    .input("dy")
    .input("rows")
    .host_input("sizes")
    .output("dx")
    .attr("lead", AttrKind::kInt)
    .traits(kView)
    .shares(taken_out)
    .infer(infer_spread)
    .not_differentiable();

// x[m, rest...] -> y[d1 .. dl, rest...]; sizes begin with d1 .. dl. The rows that are not in the list, which nobody may
// read, become copies of row 0: what is computed from them stays finite.
ORTMODULE_OP("ai.ortmodule", SpreadRows, 1)
    .input("x")
    .input("rows")
    .host_input("sizes")
    .output("y")
    .attr("lead", AttrKind::kInt)
    .traits(kView)
    .shares(taken_out)
    .infer(infer_spread)
    .no_grad({"rows"})
    .grad({"x"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::GatherRows", {c.GO(0), c.I(1)}, {{"lead", c.node().get_int("lead", 1)}}));
    });

}  // namespace ortmodule

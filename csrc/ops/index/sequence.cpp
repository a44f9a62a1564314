// Reading and writing by runs or by condition: Compress, ReverseSequence, TensorScatter, Scatter, Unique.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

void infer_from_sizes(InferContext& c, size_t sizes) {
  const auto dims = c.dims_value(sizes);
  c.out(0, c.dtype(0), dims ? std::optional<Shape>(*dims) : std::nullopt);
}

Attributes axis_of(const Node& node) {
  if (const AttributeValue* axis = node.find_attribute("axis")) return {{"axis", *axis}};
  return {};
}

}  // namespace

// The slices along `axis`, or the elements of the flattened input, whose condition holds; a short condition ends with
// false.
ORTMODULE_OP("", Compress, 9)
    .input("input")
    .input("condition")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .no_grad({"condition"})
    .infer([](InferContext& c) {
      const bool flat = !c.node().find_attribute("axis");
      std::optional<Shape> out;
      if (flat)
        out = Shape{c.fresh_dim()};
      else if (c.shape(0)) {
        out = *c.shape(0);
        (*out)[c.axis(c.attr_int("axis", 0), out->size())] = c.fresh_dim();
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"input"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::CompressGrad", {c.GO(0), c.I(1), c.sizes_of(c.I(0))}, axis_of(c.node())));
    });

ORTMODULE_OP("ai.ortmodule", CompressGrad, 1)
    .input("dY")
    .input("condition")
    .host_input("sizes")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) { infer_from_sizes(c, 2); })
    .not_differentiable();

// Turning the same elements around twice leaves them where they were: the operator is its own gradient.
ORTMODULE_OP("", ReverseSequence, 10)
    .input("input")
    .input("sequence_lens")
    .output("Y")
    .attr("batch_axis", AttrKind::kInt)
    .attr("time_axis", AttrKind::kInt)
    .no_grad({"sequence_lens"})
    .infer([](InferContext& c) {
      const int64_t batch = c.attr_int("batch_axis", 1), time = c.attr_int("time_axis", 0);
      if (batch == time || batch < 0 || batch > 1 || time < 0 || time > 1)
        c.error(str("batch_axis and time_axis should be 0 and 1, got ", batch, " and ", time));
      if (c.shape(0) && c.shape(0)->size() < 2) c.error(str("an input of shape ", shape_text(*c.shape(0))));
      infer_same(c);
    })
    .grad({"input"},
          [](GradContext& c) { c.GI(0, c.emit("ReverseSequence", {c.GO(0), c.I(1)}, c.node().attributes())); });

// `update` is written into the cache along `axis`, from write_indices[batch] on.
ORTMODULE_OP("", TensorScatter, 24)
    .input("past_cache")
    .input("update")
    .optional_input("write_indices")
    .output("present_cache")
    .attr("axis", AttrKind::kInt)
    .attr("mode", AttrKind::kString)
    .no_grad({"write_indices"})
    .infer([](InferContext& c) {
      const Shape *cache = c.shape(0), *update = c.shape(1);
      if (cache && update && cache->size() != update->size())
        c.error(
            str("past_cache and update should have one rank, got ", shape_text(*cache), " and ", shape_text(*update)));
      if (cache && c.axis(c.attr_int("axis", -2), cache->size()) == 0) c.error("axis 0 is the batch");
      infer_same(c);
    })
    .grad({"past_cache", "update"}, [](GradContext& c) {
      if (c.needs(0))
        c.GI(0, c.emit("ai.ortmodule::TensorScatterGrad", {c.GO(0), c.sizes_of(c.I(1)), c.I(2)}, [&] {
          Attributes a = c.node().attributes();
          a["clears"] = int64_t{1};
          return a;
        }()));
      if (c.needs(1))
        c.GI(1,
             c.emit("ai.ortmodule::TensorScatterGrad", {c.GO(0), c.sizes_of(c.I(1)), c.I(2)}, c.node().attributes()));
    });

// dY at the written places; with `clears`, dY with zeros there.
ORTMODULE_OP("ai.ortmodule", TensorScatterGrad, 1)
    .input("dY")
    .host_input("update_sizes")
    .optional_input("write_indices")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .attr("clears", AttrKind::kInt)
    .attr("mode", AttrKind::kString)
    .infer([](InferContext& c) {
      if (c.attr_int("clears", 0))
        infer_same(c);
      else
        infer_from_sizes(c, 1);
    })
    .not_differentiable();

// What ScatterElements was called before opset 11.
ORTMODULE_OP("", Scatter, 9)
    .input("data")
    .input("indices")
    .input("updates")
    .output("output")
    .attr("axis", AttrKind::kInt)
    .no_grad({"indices"})
    .infer(infer_same)
    .grad({"data", "updates"}, [](GradContext& c) {
      const Attributes axis{{"axis", c.node().get_int("axis", 0)}};
      if (c.needs(0)) c.GI(0, c.emit("ScatterElements", {c.GO(0), c.I(1), c.zeros_like(c.I(2))}, axis));
      if (c.needs(2)) c.GI(2, c.emit("GatherElements", {c.GO(0), c.I(1)}, axis));
    });

// Y is X at `indices`, the places where each value (or slice along `axis`) is seen first.
ORTMODULE_OP("", Unique, 11)
    .input("X")
    .output("Y")
    .output("indices", Presence::kOptional)
    .output("inverse_indices", Presence::kOptional)
    .output("counts", Presence::kOptional)
    .attr("axis", AttrKind::kInt)
    .attr("sorted", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Dim count = c.fresh_dim();
      std::optional<Shape> out;
      std::optional<Shape> along = Shape{c.fresh_shape(2)[1]};
      if (!c.node().find_attribute("axis")) {
        out = Shape{count};
        if (c.shape(0)) along = Shape{product(*c.shape(0), 0, c.shape(0)->size())};
      } else if (c.shape(0)) {
        out = *c.shape(0);
        const size_t axis = c.axis(c.attr_int("axis", 0), out->size());
        along = Shape{(*out)[axis]};
        (*out)[axis] = count;
      }
      c.out(0, c.dtype(0), std::move(out));
      c.out(1, DType::kInt64, Shape{count});
      c.out(2, DType::kInt64, std::move(along));
      c.out(3, DType::kInt64, Shape{count});
    })
    .grad({"X"}, [](GradContext& c) {
      if (!c.GO(0)) return;
      c.GI(0, c.emit("ai.ortmodule::UniqueGrad", {c.GO(0), c.O(1), c.sizes_of(c.I(0))}, axis_of(c.node())));
    });

ORTMODULE_OP("ai.ortmodule", UniqueGrad, 1)
    .input("dY")
    .input("indices")
    .host_input("sizes")
    .output("dX")
    .attr("axis", AttrKind::kInt)
    .infer([](InferContext& c) { infer_from_sizes(c, 2); })
    .not_differentiable();

}  // namespace ortmodule

// Pad and Trilu. Pad's constant mode differentiates as a Slice, a view; the other modes send each copy's gradient
// back to where the element came from.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"
#include "records/upgrade.h"

namespace ortmodule {
namespace {

// `pads` holds all begins, then all ends, of `axes` (of every axis when absent). Negative pads crop.
// The first version called the list `paddings`.
void upgrade_pad(UpgradeContext& c) {
  auto pads = c.take_ints(c.opset() == 1 ? "paddings" : "pads");
  const auto value = c.take_float("value");
  if (!pads) c.unsupported("the list of pads is missing");
  c.rewrite({c.I(0), c.ints(*pads), value && *value != 0 ? c.scalar(*value, c.dtype(0)) : nullptr});
}

ORTMODULE_OP("", Pad, 11)
    .older(1, 10, upgrade_pad)
    .input("data")
    .host_input("pads")
    .host_input("constant_value", Presence::kOptional)
    .host_input("axes", Presence::kOptional)
    .output("output")
    .attr("mode", AttrKind::kString)
    .infer([](InferContext& c) {
      const Shape* x = c.shape(0);
      const auto pads = c.dims_value(1);
      const auto axes = c.ints_value(3);
      if (!x || !pads || (c.has(3) && !axes)) {
        c.out(0, c.dtype(0), x ? std::optional<Shape>(c.fresh_shape(x->size())) : std::nullopt);
        return;
      }
      const size_t count = axes ? axes->size() : x->size();
      if (pads->size() != 2 * count) c.error(str("expected ", 2 * count, " pads, got ", pads->size()));
      Shape out = *x;
      for (size_t k = 0; k < count; ++k) {
        const size_t axis = c.axis(axes ? (*axes)[k] : static_cast<int64_t>(k), x->size());
        out[axis] = out[axis] + (*pads)[k] + (*pads)[k + count];
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"data"}, [](GradContext& c) {
      const std::string mode = c.node().get_string("mode", "constant");
      const TensorData* pads = c.I(1)->constant();
      bool grows = pads != nullptr && mode == "constant";
      std::vector<int64_t> starts, ends, axes;
      if (grows) {
        const std::vector<int64_t> numbers = pads->to_ints();
        const size_t count = numbers.size() / 2;
        for (size_t k = 0; k < count; ++k) {
          grows = grows && numbers[k] >= 0 && numbers[k + count] >= 0;
          starts.push_back(numbers[k]);
          ends.push_back(numbers[k + count] == 0 ? INT64_MAX : -numbers[k + count]);
          axes.push_back(static_cast<int64_t>(k));
        }
      }
      if (grows)
        c.GI(0, c.emit("Slice", {c.GO(0), c.ints(starts), c.ints(ends), c.I(3) ? c.I(3) : c.ints(axes)}));
      else
        c.GI(0, c.emit("ai.ortmodule::PadGrad", {c.GO(0), c.sizes_of(c.I(0)), c.I(1), c.I(3)}, {{"mode", mode}}));
    });

ORTMODULE_OP("ai.ortmodule", PadGrad, 1)
    .input("dY")
    .host_input("sizes")
    .host_input("pads")
    .host_input("axes", Presence::kOptional)
    .output("dX")
    .attr("mode", AttrKind::kString)
    .not_differentiable()
    .infer([](InferContext& c) {
      const auto dims = c.dims_value(1);
      c.out(0, c.dtype(0),
            dims         ? std::optional<Shape>(*dims)
            : c.shape(0) ? std::optional<Shape>(c.fresh_shape(c.shape(0)->size()))
                         : std::nullopt);
    });

// The upper or lower triangle of the last two axes, from diagonal k on.
ORTMODULE_OP("", Trilu, 14)
    .input("input")
    .host_input("k", Presence::kOptional)
    .output("output")
    .attr("upper", AttrKind::kInt)
    .infer(infer_same)
    .grad({"input"}, [](GradContext& c) {
      c.GI(0, c.emit("Trilu", {c.GO(0), c.I(1)}, {{"upper", c.node().get_int("upper", 1)}}));
    });

}  // namespace
}  // namespace ortmodule

// GridSample and AffineGrid: reading an image at given places, and the places of an affine map.
#include "base/status.h"
#include "records/grad_context.h"
#include "records/infer_context.h"
#include "records/registry.h"

namespace ortmodule {
namespace {

// X [N, C, d...], grid [N, o..., rank of d].
void infer_grid_sample(InferContext& c) {
  const Shape *x = c.shape(0), *grid = c.shape(1);
  if (x && (x->size() < 3 || x->size() > 5)) c.error(str("X should be [N, C, d1..d3], got ", shape_text(*x)));
  if (x && grid && x->size() != grid->size())
    c.error(str("X and grid should have one rank, got ", shape_text(*x), " and ", shape_text(*grid)));
  if (!x || !grid) {
    c.out(0, c.dtype(0), std::nullopt);
    return;
  }
  Shape out = *x;
  for (size_t i = 2; i < out.size(); ++i) out[i] = (*grid)[i - 1];
  c.out(0, c.dtype(0), std::move(out));
}

void grid_sample_attributes(OpRecord& r) {
  r.attr("align_corners", AttrKind::kInt).attr("mode", AttrKind::kString).attr("padding_mode", AttrKind::kString);
}

void grid_sample(OpRecord& r) {
  r.input("X")
      .input("grid")
      .output("Y")
      .apply(grid_sample_attributes)
      .infer(infer_grid_sample)
      .grad({"X", "grid"}, [](GradContext& c) {
        const auto g = c.emit_some("ai.ortmodule::GridSampleGrad", {c.GO(0), c.I(0), c.I(1)}, {c.needs(0), c.needs(1)},
                                   c.node().attributes());
        if (c.needs(0)) c.GI(0, g[0]);
        if (c.needs(1)) c.GI(1, g[1]);
      });
}

}  // namespace

// Opset 20 renamed bilinear and bicubic to linear and cubic and took volumes in; both names are understood.
ORTMODULE_OP("", GridSample, 16).apply(grid_sample);
ORTMODULE_OP("com.microsoft", GridSample, 1).apply(grid_sample);

ORTMODULE_OP("ai.ortmodule", GridSampleGrad, 1)
    .input("dY")
    .input("X")
    .input("grid")
    .output("dX", Presence::kOptional)
    .output("dgrid", Presence::kOptional)
    .apply(grid_sample_attributes)
    .infer([](InferContext& c) {
      c.same_as(0, 1);
      c.same_as(1, 2);
    })
    .not_differentiable();

// theta [N, 2, 3] with size (N, C, H, W), or [N, 3, 4] with (N, C, D, H, W).
ORTMODULE_OP("", AffineGrid, 20)
    .input("theta")
    .host_input("size")
    .output("grid")
    .attr("align_corners", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape* theta = c.shape_of_rank(0, 3);
      const auto size = c.dims_value(1);
      if (!size) {
        const bool known = theta && (*theta)[1].is_known();
        c.out(0, c.dtype(0),
              known ? std::optional<Shape>(c.fresh_shape(static_cast<size_t>((*theta)[1].value()) + 2)) : std::nullopt);
        return;
      }
      if (size->size() != 4 && size->size() != 5) c.error(str("size should be of 4 or 5 numbers, got ", size->size()));
      Shape out{(*size)[0]};
      for (size_t i = 2; i < size->size(); ++i) out.push_back((*size)[i]);
      out.push_back(Dim(static_cast<int64_t>(size->size()) - 2));
      c.out(0, c.dtype(0), std::move(out));
    })
    .grad({"theta"}, [](GradContext& c) {
      c.GI(0, c.emit("ai.ortmodule::AffineGridGrad", {c.GO(0), c.I(1)}, c.node().attributes()));
    });

ORTMODULE_OP("ai.ortmodule", AffineGridGrad, 1)
    .input("dgrid")
    .host_input("size")
    .output("dtheta")
    .attr("align_corners", AttrKind::kInt)
    .infer([](InferContext& c) {
      const Shape* grid = c.shape(0);
      std::optional<Shape> out;
      if (grid) {
        const auto n = static_cast<int64_t>(grid->size()) - 2;
        out = Shape{(*grid)[0], Dim(n), Dim(n + 1)};
      }
      c.out(0, c.dtype(0), std::move(out));
    })
    .not_differentiable();

}  // namespace ortmodule

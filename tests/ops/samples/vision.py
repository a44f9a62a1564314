"""Rows of image operators: resizing, sampling at places, regions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand

# -- sizes -------------------------------------------------------------------------------------------------------------


def scales(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def matrix(
    n: int,
    out: int,
    scale: float,
    coordinates: str,
    mode: str,
    nearest: str,
    outside: int,
    antialias: int,
    region: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The interpolation of one axis as a matrix [out, n], and which places of it are outside the input."""
    j = torch.arange(out, dtype=torch.float64)
    if coordinates == "tf_crop_and_resize":
        x = region[0] * (n - 1) + j * (region[1] - region[0]) * (n - 1) / (scale * n - 1)
    elif coordinates == "align_corners":
        x = j * (n - 1) / max(scale * n - 1, 1e-30) if scale * n != 1 else torch.zeros(out, dtype=torch.float64)
    elif coordinates == "asymmetric":
        x = j / scale
    else:
        x = (j + 0.5) / scale - 0.5
    if coordinates == "pytorch_half_pixel" and out == 1:
        x = torch.full((out,), -0.5, dtype=torch.float64)
    if coordinates == "half_pixel_symmetric":
        x = x + n / 2 * (1 - out / (scale * n))
    places = torch.arange(-8, n + 8, dtype=torch.float64)
    distance = (x[:, None] - places).abs() * (min(scale, 1.0) if antialias else 1.0)
    if mode == "nearest":
        rounded = {
            "floor": x.floor(),
            "ceil": x.ceil(),
            "round_prefer_floor": (x - 0.5).ceil(),
            "round_prefer_ceil": (x + 0.5).floor(),
        }[nearest]
        weights = (places == rounded[:, None]).double()
    elif mode == "linear":
        weights = (1 - distance).clamp(min=0)
    else:
        a, d = -0.75, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weights = torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
    inside = (places >= 0) & (places < n)
    if outside:
        weights = weights * inside
    if outside or antialias:
        weights = weights / weights.sum(1, keepdim=True)
    edges = F.one_hot(places.clamp(0, n - 1).long(), n).double()
    return weights @ edges, (x < 0) | (x > n - 1)


def resize(
    x: torch.Tensor,
    roi: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    sizes: torch.Tensor | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    exclude_outside: int = 0,
    antialias: int = 0,
    extrapolation_value: float = 0.0,
    axes: Sequence[int] | None = None,
) -> torch.Tensor:
    y = x.to(torch.float64)
    fills = []
    for k, axis in enumerate(axes or range(x.dim())):
        n = x.shape[axis]
        scale = float(factors[k]) if factors is not None else float(sizes[k]) / n  # type: ignore[index]
        out = int(n * scale) if factors is not None else int(sizes[k])  # type: ignore[index]
        region = (0.0, 1.0) if roi is None else (float(roi[k]), float(roi[k + len(roi) // 2]))
        how = (coordinate_transformation_mode, mode, nearest_mode, exclude_outside, antialias, region)
        m, beyond = matrix(n, out, scale, *how)
        y = torch.tensordot(y, m, ([axis], [1])).movedim(-1, axis)
        fills.append((axis, beyond.nonzero().squeeze(1)))
    if coordinate_transformation_mode == "tf_crop_and_resize":
        for axis, places in fills:
            y = y.index_fill(axis, places, extrapolation_value)
    return y.to(x.dtype)


def resize_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, 6, dtype=dtype)
    up, down = scales(1, 1, 2, 3), scales(1, 1, 0.5, 0.6)
    out = []
    for mode in ("nearest", "linear", "cubic"):
        kinds = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
        for kind in kinds:
            attributes = {"mode": mode, "coordinate_transformation_mode": kind}
            out.append(Case((x, None, up), attributes, constants=(2,)))
            out.append(Case((x, None, down), attributes))
        out.append(Case((x, None, None, ints(2, 3, 7, 5)), {"mode": mode}, constants=(3,)))
        out.append(Case((x, None, None, ints(5, 3)), {"mode": mode, "axes": [2, 3]}, constants=(3,)))
    for nearest in ("floor", "ceil", "round_prefer_ceil"):
        attributes = {"nearest_mode": nearest, "coordinate_transformation_mode": "asymmetric"}
        out.append(Case((x, None, scales(1, 1, 2, 2)), attributes, constants=(2,)))
        out.append(Case((x, None, scales(1, 1, 0.7, 1.3)), attributes, constants=(2,)))
    out.append(Case((x, None, down), {"mode": "cubic", "exclude_outside": 1}, constants=(2,)))
    for mode in ("linear", "cubic"):
        out.append(Case((x, None, scales(0.6, 0.7), None), {"mode": mode, "antialias": 1, "axes": [-2, -1]}, (2,)))
        crop = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
        out.append(Case((x, scales(0.4, -0.2, 1.3, 0.7), None, ints(3, 4)), {**crop, "axes": [2, 3]}, (1, 3)))
    out.append(Case((rand(2, 3, 5, dtype=dtype), None, scales(1, 1, 2)), {"mode": "linear"}, constants=(2,)))
    out.append(Case((rand(2, 5, dtype=dtype), None, scales(2, 0.5)), {"mode": "linear"}, constants=(2,)))
    return out


def center_crop_pad(x: torch.Tensor, shape: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
    for axis, size in zip(axes or range(x.dim()), shape.tolist()):
        n = x.shape[axis]
        if size <= n:
            x = x.narrow(axis, (n - size) // 2, size)
        else:
            before = (size - n) // 2
            pads = [0, 0] * x.dim()
            at = 2 * (x.dim() - 1 - axis % x.dim())
            pads[at], pads[at + 1] = before, size - n - before
            x = F.pad(x, pads)
    return x


def center_crop_pad_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(4, 7, 5, dtype=dtype)
    return [
        Case((x, ints(2, 4, 5)), constants=(1,)),
        Case((x, ints(7, 4, 8)), constants=(1,)),
        Case((x, ints(10, 2)), {"axes": [1, -1]}),
    ]


# -- places ------------------------------------------------------------------------------------------------------------


def grid_sample(
    x: torch.Tensor, grid: torch.Tensor, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> torch.Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if x.dim() == 3:
        flat = torch.stack([grid[..., 0], torch.zeros_like(grid[..., 0])], -1).unsqueeze(1)
        return F.grid_sample(x.unsqueeze(2), flat, mode, padding_mode, bool(align_corners)).squeeze(2)
    if x.dtype == torch.bfloat16:
        return F.grid_sample(x.float(), grid.float(), mode, padding_mode, bool(align_corners)).to(x.dtype)
    return F.grid_sample(x, grid, mode, padding_mode, bool(align_corners))


def places(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Positions in and around an image, none of them where a sample of 3, 4 or 5 elements has a kink."""
    return (torch.randint(-20, 21, shape, dtype=torch.float64) / 16 + 0.0137).to(dtype)


def grid_sample_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, grid = rand(2, 3, 4, 5, dtype=dtype), places(2, 3, 4, 2, dtype=dtype)
    out = []
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                how = {"mode": mode, "padding_mode": padding, "align_corners": align}
                out.append(Case((x, grid), how))
    volume, spots = rand(2, 3, 4, 5, 3, dtype=dtype), places(2, 2, 3, 2, 3, dtype=dtype)
    out.append(Case((volume, spots)))
    out.append(Case((volume, spots), {"mode": "nearest", "padding_mode": "border"}))
    return out


def short_grid_sample_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, grid = rand(2, 3, 4, 5, dtype=dtype), places(2, 3, 4, 2, dtype=dtype)
    return [Case((x, grid), {"mode": "bilinear"}), Case((x, grid), {"mode": "bicubic", "align_corners": 1})]


def affine_grid(theta: torch.Tensor, size: torch.Tensor, align_corners: int = 0) -> torch.Tensor:
    return F.affine_grid(theta, size.tolist(), bool(align_corners))


def affine_grid_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(2, 2, 3, dtype=dtype), ints(2, 3, 4, 5)), constants=(1,)),
        Case((rand(2, 2, 3, dtype=dtype), ints(2, 3, 4, 5)), {"align_corners": 1}),
        Case((rand(2, 3, 4, dtype=dtype), ints(2, 1, 3, 4, 5)), constants=(1,)),
    ]


# -- regions -----------------------------------------------------------------------------------------------------------


def bilinear(x: torch.Tensor, y: float, z: float) -> torch.Tensor:
    """x [C, H, W] at one place; zeros further than one element outside."""
    h, w = x.shape[1:]
    if y < -1 or y > h or z < -1 or z > w:
        return x.new_zeros(x.shape[0])
    y, z = min(max(y, 0.0), h - 1.0), min(max(z, 0.0), w - 1.0)
    y0, z0 = int(y), int(z)
    y1, z1 = min(y0 + 1, h - 1), min(z0 + 1, w - 1)
    a, b = y - y0, z - z0
    top = (1 - b) * x[:, y0, z0] + b * x[:, y0, z1]
    return (1 - a) * top + a * ((1 - b) * x[:, y1, z0] + b * x[:, y1, z1])


def roi_align(
    x: torch.Tensor,
    rois: torch.Tensor,
    batch: torch.Tensor,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> torch.Tensor:
    half = coordinate_transformation_mode == "half_pixel"
    out = []
    for roi, n in zip(rois.double().tolist(), batch.tolist()):
        x0, y0, x1, y1 = (v * spatial_scale - (0.5 if half else 0) for v in roi)
        height, width = y1 - y0, x1 - x0
        if not half:
            height, width = max(height, 1.0), max(width, 1.0)
        bh, bw = height / output_height, width / output_width
        gh, gw = sampling_ratio or -int(-bh // 1), sampling_ratio or -int(-bw // 1)
        for p in range(output_height):
            for q in range(output_width):
                samples = [
                    bilinear(x[n].to(torch.float64), y0 + (p + (i + 0.5) / gh) * bh, x0 + (q + (j + 0.5) / gw) * bw)
                    for i in range(gh)
                    for j in range(gw)
                ]
                out.append(torch.stack(samples).mean(0))
    return torch.stack(out).view(len(rois), output_height, output_width, -1).permute(0, 3, 1, 2).to(x.dtype)


def roi_align_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, rois = rand(2, 3, 8, 9, dtype=dtype), torch.tensor([[1.0, 2, 6, 7], [0, 0, 3.5, 9], [4, 4, 4.5, 4.5]]).to(dtype)
    batch = ints(0, 1, 1)
    size = {"output_height": 2, "output_width": 3}
    return [
        Case((x, rois, batch), size),
        Case((x, rois, batch), {**size, "sampling_ratio": 2, "spatial_scale": 0.5}),
        Case((x, rois, batch), {**size, "coordinate_transformation_mode": "output_half_pixel"}),
    ]


def roi_align_of_opset_10(x: torch.Tensor, rois: torch.Tensor, batch: torch.Tensor, **how: int) -> torch.Tensor:
    return roi_align(x, rois, batch, coordinate_transformation_mode="output_half_pixel", **how)


def max_roi_pool(
    x: torch.Tensor, rois: torch.Tensor, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> torch.Tensor:
    out = []
    for roi in rois.tolist():
        x0, y0, x1, y1 = (round(v * spatial_scale) for v in roi[1:])
        part = x[int(roi[0])][:, y0 : y1 + 1, x0 : x1 + 1]
        out.append(F.adaptive_max_pool2d(part, list(pooled_shape)))
    return torch.stack(out)


def max_roi_pool_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, rois = rand(2, 3, 8, 9, dtype=dtype), torch.tensor([[0.0, 1, 2, 6, 7], [1, 0, 0, 3, 7], [1, 2, 3, 8, 4]])
    return [
        Case((x, rois.to(dtype)), {"pooled_shape": [2, 2]}),
        Case((x, (rois * torch.tensor([1, 2, 2, 2, 2])).to(dtype)), {"pooled_shape": [1, 2], "spatial_scale": 0.5}),
    ]


def deform_conv(
    x: torch.Tensor,
    w: torch.Tensor,
    offset: torch.Tensor,
    b: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    offset_group: int = 1,
) -> torch.Tensor:
    """Tap by tap, with bilinear reading written out."""
    kind = x.dtype
    x, w, offset = x.double(), w.double(), offset.double()
    n, channels, h, width = x.shape
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    shift = offset.reshape(n, offset_group, kh * kw, 2, oh, ow)
    masks = None if mask is None else mask.double().reshape(n, offset_group, kh * kw, oh, ow)
    padded = F.pad(x, (1, 1, 1, 1)).flatten(2)
    per_group = channels // offset_group
    columns = []
    for k in range(kh * kw):
        rows = torch.arange(oh).view(-1, 1) * strides[0] - pads[0] + k // kw * dilations[0]
        cols = torch.arange(ow).view(1, -1) * strides[1] - pads[1] + k % kw * dilations[1]
        read = []
        for g in range(offset_group):
            y, z = shift[:, g, k, 0] + rows, shift[:, g, k, 1] + cols
            y0, z0 = y.detach().floor(), z.detach().floor()
            total = x.new_zeros(n, per_group, oh, ow)
            for dy in (0, 1):
                for dz in (0, 1):
                    weight = (1 - (y - y0 - dy).abs()) * (1 - (z - z0 - dz).abs())
                    # One ring of zeros around the image stands for everything outside.
                    at = (y0 + dy).clamp(-1, h) + 1, (z0 + dz).clamp(-1, width) + 1
                    index = (at[0] * (width + 2) + at[1]).long().reshape(n, 1, -1).expand(n, per_group, -1)
                    values = padded[:, g * per_group : (g + 1) * per_group].gather(2, index)
                    total = total + values.reshape(n, per_group, oh, ow) * weight.unsqueeze(1)
            read.append(total if masks is None else total * masks[:, g, k].unsqueeze(1))
        columns.append(torch.cat(read, 1))
    stacked = torch.stack(columns, 2).reshape(n, group, channels // group, kh * kw, oh, ow)
    y = torch.einsum("ngckhw,gock->ngohw", stacked, w.reshape(group, -1, w.shape[1], kh * kw))
    y = y.reshape(n, w.shape[0], oh, ow)
    return (y if b is None else y + b.double().view(1, -1, 1, 1)).to(kind)


def deform_conv_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, w, b = rand(2, 4, 6, 5, dtype=dtype), rand(6, 2, 3, 2, dtype=dtype), rand(6, dtype=dtype)
    plain = rand(2, 12, 4, 4, dtype=dtype)
    two = rand(2, 24, 3, 3, dtype=dtype)
    mask = rand(2, 12, 3, 3, dtype=dtype, low=0, high=1)
    strided = {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 2]}
    return [
        Case((x, w, plain), {"group": 2}),
        Case((x, w, two, b, mask), strided),
    ]


def non_max_suppression(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    most: torch.Tensor | None = None,
    iou: torch.Tensor | None = None,
    least: torch.Tensor | None = None,
) -> torch.Tensor:
    limit = 0 if most is None else int(most)
    threshold = 0.0 if iou is None else float(iou)
    out = []
    for n in range(boxes.shape[0]):
        for k in range(scores.shape[1]):
            kept: list[int] = []
            for i in scores[n, k].float().argsort(descending=True, stable=True).tolist():
                if least is not None and float(scores[n, k, i]) <= float(least):
                    continue
                if len(kept) < limit and all(overlap(boxes[n, i], boxes[n, j]) <= threshold for j in kept):
                    kept.append(i)
            out += [[n, k, i] for i in kept]
    return torch.tensor(out, dtype=torch.int64).view(-1, 3)


def overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    sides = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    shared = float(sides.prod())
    return shared / (float((a[2:] - a[:2]).prod()) + float((b[2:] - b[:2]).prod()) - shared)


def non_max_suppression_cases(dtype: torch.dtype) -> Sequence[Case]:
    corner = rand(2, 12, 2, dtype=dtype, low=0, high=3)
    boxes = torch.cat([corner, corner + rand(2, 12, 2, dtype=dtype, low=0.5, high=2)], -1)
    scores = rand(2, 3, 12, dtype=dtype, low=0, high=1)
    limit, iou, least = ints(4), torch.tensor([0.3]), torch.tensor([0.25])
    return [
        Case((boxes, scores, limit, iou, least), constants=(2, 3, 4)),
        Case((boxes, scores, limit)),
        Case((boxes, scores)),
    ]


ROWS = [
    Row("Resize", resize, resize_cases, grads=(0,)),
    Row("CenterCropPad", center_crop_pad, center_crop_pad_cases, refuses=True),
    # Half precision is a matter of how far apart places are, not of the operator.
    Row("GridSample", grid_sample, grid_sample_cases, tolerance=1e-4, wide=True),
    Row("GridSample", grid_sample, short_grid_sample_cases, domain="com.microsoft", tolerance=1e-4, wide=True),
    Row("AffineGrid", affine_grid, affine_grid_cases),
    Row("RoiAlign", roi_align, roi_align_cases, grads=(0,), refuses=True),
    Row("RoiAlign", roi_align_of_opset_10, lambda t: roi_align_cases(t)[:2], grads=(0,), opset=13, refuses=True),
    Row("MaxRoiPool", max_roi_pool, max_roi_pool_cases, grads=(0,)),
    Row("DeformConv", deform_conv, deform_conv_cases, tolerance=1e-4, wide=True, refuses=True),
    Row("NonMaxSuppression", non_max_suppression, non_max_suppression_cases, differentiable=False, refuses=True),
]

"""Rows of operators that move, cut, join and repeat elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand, scalar

OWN = "ai.ortmodule"
FAR = torch.iinfo(torch.int64).max


def reshape(x: torch.Tensor, shape: torch.Tensor, allowzero: int = 0) -> torch.Tensor:
    wanted = shape.tolist()
    if not allowzero:
        wanted = [x.size(i) if d == 0 else d for i, d in enumerate(wanted)]
    return x.reshape(wanted) * 1


def reshape_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    shapes = [(6, 4), (-1,), (0, -1), (2, 0, 2, 2), (4, -1, 1)]
    return [
        *[Case((x, ints(*s)), {}, (1,)) for s in shapes],
        Case((x, ints(12, 2)), {"allowzero": 1}),
        Case((rand(0, 3, dtype=dtype), ints(3, 0)), {"allowzero": 1}, (1,)),
        Case((rand(1, dtype=dtype), ints()), {}, (1,)),
        Case((rand(dtype=dtype), ints(1, 1)), {}, (1,)),
    ]


def flatten(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
    rows = x.shape[: axis % x.dim() if axis < 0 else axis].numel()
    return x.reshape(rows, x.numel() // rows) * 1


def flatten_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [Case((x,)), *[Case((x,), {"axis": a}) for a in (0, 2, 3, -1, -2)]]


def transpose(x: torch.Tensor, perm: Sequence[int] | None = None) -> torch.Tensor:
    return x.permute(*(perm or reversed(range(x.dim())))) * 1


def transpose_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x,)),
        *[Case((x,), {"perm": p}) for p in ([0, 2, 1], [1, 2, 0], [2, 0, 1])],
        Case((rand(0, 2, dtype=dtype),), {"perm": [1, 0]}),
        Case((rand(3, dtype=dtype),)),
    ]


def squeeze(x: torch.Tensor, axes: torch.Tensor | None = None) -> torch.Tensor:
    return (x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist()))) * 1


def squeeze_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(1, 3, 1, 2, dtype=dtype)
    return [Case((x,)), *[Case((x, ints(*a)), {}, (1,)) for a in ((0,), (2,), (0, -2))], Case((x, ints(2)))]


def unsqueeze(x: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    rank = x.dim() + len(axes)
    for a in sorted(a % rank for a in axes.tolist()):
        x = x.unsqueeze(a)
    return x * 1


def unsqueeze_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 2, dtype=dtype)
    return [*[Case((x, ints(*a)), {}, (1,)) for a in ((0,), (-1,), (3, 0), (1, -1))], Case((x, ints(1)))]


def expand(x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))) * 1


def expand_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 1, dtype=dtype)
    return [
        *[Case((x, ints(*s)), {}, (1,)) for s in ((3, 4), (2, 3, 4), (1, 4), (3, 1), (1,))],
        Case((x, ints(2, 3, 2))),
        Case((rand(dtype=dtype), ints(2, 2)), {}, (1,)),
    ]


def slice_(
    x: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    axes: torch.Tensor | None = None,
    steps: torch.Tensor | None = None,
) -> torch.Tensor:
    keys: list[int] = list(range(len(starts))) if axes is None else axes.tolist()
    strides: list[int] = [1] * len(keys) if steps is None else steps.tolist()
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), keys, strides):
        span = range(x.size(axis))[slice(start, None if step < 0 and end < -x.size(axis) else end, step)]
        x = x.index_select(axis, torch.tensor(list(span), dtype=torch.int64))
    return x * 1


def slice_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(4, 5, 3, dtype=dtype)
    all_constant = (1, 2, 3, 4)
    return [
        Case((x, ints(1), ints(3)), {}, all_constant),
        Case((x, ints(0, 1), ints(FAR, -1)), {}, all_constant),
        Case((x, ints(1, -2), ints(4, FAR), ints(1, -1)), {}, all_constant),
        Case((x, ints(0), ints(5), ints(1), ints(2)), {}, all_constant),
        Case((x, ints(-1), ints(-FAR), ints(1), ints(-1)), {}, all_constant),
        Case((x, ints(4, 2), ints(0, 0), ints(1, 2), ints(-2, -1)), {}, all_constant),
        Case((x, ints(3), ints(3), ints(0)), {}, all_constant),
        Case((x, ints(2), ints(100), ints(-2), ints(2))),
    ]


def slice_scatter(
    x: torch.Tensor, src: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, steps: torch.Tensor, axis: int = 0
) -> torch.Tensor:
    return torch.slice_scatter(x, src, axis, int(starts), int(ends), int(steps))


def slice_scatter_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(4, 5, dtype=dtype)
    return [
        Case((x, rand(2, 5, dtype=dtype), ints(1), ints(3), ints(1)), {"axis": 0}, (2, 3, 4)),
        Case((x, rand(4, 2, dtype=dtype), ints(1), ints(FAR), ints(2)), {"axis": -1}, (2, 3, 4)),
        Case((x, rand(4, 2, dtype=dtype), ints(-2), ints(5), ints(1)), {"axis": 1}),
    ]


def concat(*xs: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat(xs, axis)


def concat_cases(dtype: torch.dtype) -> Sequence[Case]:
    a, b, c = rand(2, 3, dtype=dtype), rand(2, 1, dtype=dtype), rand(2, 0, dtype=dtype)
    return [
        Case((a, b), {"axis": 1}),
        Case((a, b, c, a), {"axis": -1}),
        Case((a, a), {"axis": 0}),
        Case((a,), {"axis": 0}),
    ]


def split(
    x: torch.Tensor, sizes: torch.Tensor | None = None, axis: int = 0, num_outputs: int = 0
) -> tuple[torch.Tensor, ...]:
    if sizes is not None:
        return tuple(p * 1 for p in x.split(sizes.tolist(), axis))
    return tuple(p * 1 for p in x.split(-(-x.size(axis) // num_outputs), axis))


def split_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(4, 5, dtype=dtype)
    return [
        Case((x, ints(1, 3)), {"axis": 0}, (1,), 2),
        Case((x, ints(2, 0, 3)), {"axis": -1}, (1,), 3),
        Case((x, ints(2, 3)), {"axis": 1}, (), 2),
        Case((x,), {"axis": 1, "num_outputs": 3}, (), 3),
        Case((x,), {"num_outputs": 2}, (), 2),
    ]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_half_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, 70, dtype=dtype)
    return [Case((x,)), Case((x[..., :2],)), Case((x.transpose(1, 2)[..., 4:],)), Case((x[0, 0, 0],)), Case((x[:0],))]


def stack(*xs: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.stack(xs, axis)


def stack_cases(dtype: torch.dtype) -> Sequence[Case]:
    a, b = rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype)
    many = rand(3, 90, 70, dtype=dtype)  # more than is copied at once
    return [
        *[Case((a, b, a), {"axis": axis}) for axis in (0, 1, 2, -1)],
        Case((a, b.t().contiguous().t()), {"axis": 1}),
        Case((rand(dtype=dtype), rand(dtype=dtype)), {"axis": 0}),
        Case((a,), {"axis": -3}),
        Case(tuple(many), {"axis": 1}),
        Case((a[:, :0], b[:, :0]), {"axis": 1}),
    ]


def unstack(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, ...]:
    return tuple(p * 1 for p in x.unbind(axis))


def unstack_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 2, 4, dtype=dtype)
    return [Case((x,), {"axis": a}, (), x.size(a)) for a in (0, 1, -1)] + [Case((x[0, 0],), {"axis": 0}, (), 4)]


def pad(
    x: torch.Tensor,
    pads: torch.Tensor,
    value: torch.Tensor | None = None,
    axes: torch.Tensor | None = None,
    mode: str = "constant",
) -> torch.Tensor:
    n = len(pads) // 2
    keys: list[int] = list(range(n)) if axes is None else [a % x.dim() for a in axes.tolist()]
    before, after = pads.tolist()[:n], pads.tolist()[n:]
    if mode == "constant":
        flat = [0] * (2 * x.dim())
        for k, axis in enumerate(keys):
            flat[2 * (x.dim() - 1 - axis)], flat[2 * (x.dim() - 1 - axis) + 1] = before[k], after[k]
        return F.pad(x, flat, value=0.0 if value is None else float(value)) * 1
    for k, axis in enumerate(keys):
        if before[k] or after[k]:
            kind = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode]
            moved = F.pad(x.movedim(axis, -1).reshape(1, -1, x.size(axis)), (before[k], after[k]), kind)
            rest = x.movedim(axis, -1).shape[:-1]
            x = moved.reshape(*rest, moved.size(-1)).movedim(-1, axis)
    return x * 1


def pad_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, value = rand(3, 4, dtype=dtype), torch.tensor(1.5, dtype=dtype)
    return [
        Case((x, ints(1, 0, 0, 2)), {}, (1,)),
        Case((x, ints(1, 2, 1, 0), value), {}, (1, 2)),
        Case((x, ints(-1, 1, 0, 1), value), {"mode": "constant"}, (1, 2)),
        Case((x, ints(2, 1), None, ints(-1)), {}, (1, 3)),
        Case((x, ints(1, 1, 1, 1))),
        *[Case((x, ints(1, 2, 2, 1)), {"mode": m}, (1,)) for m in ("edge", "reflect", "wrap")],
    ]


def tile_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, dtype=dtype)
    return [Case((x, ints(*r)), {}, (1,)) for r in ((2, 1), (1, 1), (3, 2), (0, 2))] + [Case((x, ints(1, 2)))]


def shape(x: torch.Tensor, start: int = 0, end: int | None = None) -> torch.Tensor:
    return torch.tensor(list(x.shape)[slice(start, end)], dtype=torch.int64)


def shape_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    keys = [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 3}, {"start": 2, "end": 1}, {"end": 9}]
    return [Case((x,), k) for k in keys] + [Case((rand(dtype=dtype),))]


def trilu(x: torch.Tensor, k: torch.Tensor | None = None, upper: int = 1) -> torch.Tensor:
    return (torch.triu if upper else torch.tril)(x, 0 if k is None else int(k))


def trilu_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x,)),
        Case((x, scalar(1)), {"upper": 0}, (1,)),
        Case((x, scalar(-1)), {"upper": 1}),
        Case((x, scalar(9)), {}, (1,)),
    ]


def depth_to_space(x: torch.Tensor, blocksize: int, mode: str = "DCR") -> torch.Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    b = blocksize
    return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


def depth_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 8, 2, 3, dtype=dtype)
    return [Case((x,), {"blocksize": 2, "mode": m}) for m in ("DCR", "CRD")] + [Case((x,), {"blocksize": 1})]


def space_to_depth(x: torch.Tensor, blocksize: int, mode: str = "DCR") -> torch.Tensor:
    n, c, h, w = x.shape
    b = blocksize
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // b, b, w // b, b).permute(order).reshape(n, c * b * b, h // b, w // b)


def space_to_depth_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(1, 2, 4, 6, dtype=dtype)
    return [Case((x,), {"blocksize": 2}), Case((x,), {"blocksize": 2, "mode": "CRD"})]


def concat_sum(*parts: torch.Tensor, wide: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.cat(parts, -1)
    terms = whole.float() if wide else whole
    return whole, terms.sum(tuple(range(whole.dim() - 1))) if whole.dim() > 1 else terms


def concat_sum_cases(dtype: torch.dtype) -> list[Case]:
    sizes = [((2, 3, 4), (2, 3, 1)), ((5, 2), (5, 2), (5, 3)), ((3,), (4,))]
    return [
        Case(tuple(rand(*s, dtype=dtype) for s in parts), {"wide": wide}, outputs=2)
        for parts in sizes
        for wide in (0, 1)
    ]


ROWS = [
    Row("Reshape", reshape, reshape_cases),
    Row("Flatten", flatten, flatten_cases),
    Row("Transpose", transpose, transpose_cases),
    Row("Squeeze", squeeze, squeeze_cases),
    Row("Unsqueeze", unsqueeze, unsqueeze_cases),
    Row("Expand", expand, expand_cases),
    Row("Slice", slice_, slice_cases),
    Row("SliceScatter", slice_scatter, slice_scatter_cases, OWN),
    Row("Concat", concat, concat_cases),
    Row("ConcatSum", concat_sum, concat_sum_cases, OWN, differentiable=False),
    Row("Split", split, split_cases, refuses=True),
    Row("RotateHalf", rotate_half, rotate_half_cases, OWN, refuses=True),
    Row("Stack", stack, stack_cases, OWN),
    Row("Unstack", unstack, unstack_cases, OWN, differentiable=False),
    Row("Pad", pad, pad_cases, refuses=True),
    Row("Tile", lambda x, r: x.repeat(tuple(r.tolist())), tile_cases),
    Row("Shape", shape, shape_cases, differentiable=False),
    Row("Size", lambda x: torch.tensor(x.numel()), lambda d: [Case((rand(2, 3, dtype=d),))], differentiable=False),
    Row("Trilu", trilu, trilu_cases),
    Row("DepthToSpace", depth_to_space, depth_cases, no_forms=("size 2 as 0", "size 3 as 0", "size 8 as 0")),
    Row("SpaceToDepth", space_to_depth, space_to_depth_cases),
]

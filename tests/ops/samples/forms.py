"""Rows for the less common forms of operators: scatters with a reduction, dilated means, batch statistics, ..."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand


def scatter_reduce(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int, reduction: str):
    how = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return x.scatter_reduce(axis, indices, updates, how)


def scatter_reduce_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, repeated = rand(3, 4, dtype=dtype), torch.tensor([[1, 1], [2, 2], [0, 1]])
    return [Case((x, repeated, rand(3, 2, dtype=dtype)), {"axis": 1, "reduction": r}) for r in ("mul", "max", "min")]


def scatter_nd_reduce(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduction: str):
    how = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis, position in enumerate(indices.unbind(-1)):
        rows = rows * x.shape[axis] + position % x.shape[axis]
    taken = indices.shape[-1]
    flat, rest = x.flatten(0, taken - 1), x.shape[taken:]
    source = updates.reshape(-1, *rest)
    index = rows.reshape(-1, *[1] * len(rest)).expand(source.shape)
    return flat.scatter_reduce(0, index, source, how).reshape(x.shape)


def scatter_nd_reduce_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, dtype=dtype)
    return [
        Case((x, indices, rand(*shape, dtype=dtype)), {"reduction": r})
        for r in ("mul", "max", "min")
        for indices, shape in ((torch.tensor([[2], [0], [2]]), (3, 4)), (torch.tensor([[[0, 1]], [[-1, 1]]]), (2, 1)))
    ]


def first_of_equals(x: torch.Tensor, k: torch.Tensor, axis: int = -1, largest: int = 1):
    values, indices = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, int(k)), indices.narrow(axis, 0, int(k))


def tie_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.randint(0, 3, (4, 9)).to(dtype)
    return [Case((x, ints(4)), {}, (1,), 2), Case((x, ints(2)), {"axis": 0, "largest": 0}, (1,), 2)]


def space_to_depth(x: torch.Tensor, blocksize: int, mode: str):
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * b * b, h // b, w // b)


def space_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(1, 2, 4, 6, dtype=dtype),), {"blocksize": 2, "mode": m}) for m in ("DCR", "CRD")]


def dilated_mean(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    count_include_pad: int = 0,
):
    def windows(t):
        t = F.pad(t, [pads[1], pads[3], pads[0], pads[2]])
        columns = F.unfold(t, kernel_shape, dilation=dilations, stride=strides)
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel_shape)]
        out = [(t.shape[i + 2] - spans[i]) // strides[i] + 1 for i in range(2)]
        return columns.reshape(*t.shape[:2], -1, *out)

    count = windows(torch.ones_like(x)) if not count_include_pad else torch.ones_like(windows(x))
    return windows(x).sum(2) / count.sum(2)


def dilated_mean_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 7, 8, dtype=dtype)
    return [
        Case((x,), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
        Case((x,), {"kernel_shape": [3, 2], "dilations": [1, 3], "pads": [1, 0, 0, 2], "strides": [2, 1]}),
        Case((x,), {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ]


def own_statistics(x, scale, bias, mean, var, epsilon=1e-5, momentum=0.9, training_mode=1):
    axes = [i for i in range(x.dim()) if i != 1]
    new_mean, new_var = x.mean(axes).detach(), x.var(axes, unbiased=False).detach()
    y = F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    return y, mean * momentum + new_mean * (1 - momentum), var * momentum + new_var * (1 - momentum)


def own_statistics_cases(dtype: torch.dtype) -> Sequence[Case]:
    def inputs(*spatial: int) -> tuple[torch.Tensor, ...]:
        rows = [rand(3, dtype=dtype) for _ in range(3)]
        return (rand(4, 3, *spatial, dtype=dtype), *rows, rand(3, dtype=dtype, low=0.5))

    # No gradient flows through the running statistics, as in PyTorch: differences see one.
    return [
        Case(inputs(*s), {"training_mode": 1, "momentum": m}, outputs=n, smooth=n == 1)
        for s, m, n in (((), 0.9, 3), ((5,), 0.7, 3), ((3, 4), 0.9, 3), ((3, 4), 0.9, 1))
    ]


def repeated_letters(dtype: torch.dtype) -> Sequence[Case]:
    square, cube = rand(3, 3, dtype=dtype), rand(3, 2, 3, dtype=dtype)
    return [
        Case((square,), {"equation": "ii->i"}),
        Case((square,), {"equation": "ii"}),
        Case((cube, rand(3, dtype=dtype)), {"equation": "iji,i->ij"}),
        Case((cube,), {"equation": "ijk->j"}),
        Case((square, rand(4, 2, dtype=dtype)), {"equation": "ij,kl->il"}),
    ]


def layer_norm_with_statistics(x, scale, bias, axis=-1, epsilon=1e-5):
    axes = list(range(axis % x.dim(), x.dim()))
    mean = x.mean(axes, keepdim=True)
    inv_std = (x.var(axes, unbiased=False, keepdim=True) + epsilon).rsqrt()
    return (x - mean) * inv_std * scale + bias, mean, inv_std


def statistics_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 8, dtype=dtype)
    return [
        Case((x, rand(8, dtype=dtype), rand(8, dtype=dtype)), outputs=3),
        Case((x, rand(3, 8, dtype=dtype), rand(3, 8, dtype=dtype)), {"axis": 1}, outputs=3),
    ]


ROWS = [
    Row("ScatterElements", scatter_reduce, scatter_reduce_cases),
    Row("ScatterND", scatter_nd_reduce, scatter_nd_reduce_cases, refuses=True),
    Row("TopK", first_of_equals, tie_cases, smooth=False),
    Row("SpaceToDepth", space_to_depth, space_cases),
    Row("AveragePool", dilated_mean, dilated_mean_cases, wide=True),
    Row(
        "BatchNormalization",
        own_statistics,
        own_statistics_cases,
        grads=(0, 1, 2),
        wide=True,
        no_forms=("size 4 as 0", "size 5 as 0"),
    ),
    Row("Einsum", lambda *operands, equation: torch.einsum(equation, *operands), repeated_letters),
    # Statistics of no elements are not defined.
    Row(
        "LayerNormalization",
        layer_norm_with_statistics,
        statistics_cases,
        wide=True,
        float_outputs=(1, 2),
        no_forms=("size 8 as 0", "size 3 as 0"),
    ),
]

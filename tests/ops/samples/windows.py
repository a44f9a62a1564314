"""Rows of operators that slide a window: convolution, pooling, unpooling, columns, local response."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, ints, rand


def pads_of(pads: Sequence[int]) -> list[int]:
    """F.pad's order for the standard's."""
    rank = len(pads) // 2
    return [p for i in reversed(range(rank)) for p in (pads[i], pads[i + rank])]


def same_pads(x: torch.Tensor, kernel: Sequence[int], strides: Sequence[int], auto_pad: str) -> list[int]:
    begins, ends = [], []
    for size, k, s in zip(x.shape[2:], kernel, strides):
        total = max(0, (-(-size // s) - 1) * s + k - size)
        begins.append(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends


def conv(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> torch.Tensor:
    rank = x.dim() - 2
    strides = strides or [1] * rank
    if auto_pad.startswith("SAME"):
        pads = same_pads(x, w.shape[2:], strides, auto_pad)
    run = [F.conv1d, F.conv2d, F.conv3d][rank - 1]
    padding = even_pads(pads, rank)
    if not padding:
        x = F.pad(x, pads_of(pads or [0] * 2 * rank))
    return run(x, w, b, strides, padding or 0, dilations or [1] * rank, group)


def even_pads(pads: Sequence[int] | None, rank: int) -> list[int] | None:
    """Pads that are the same at both ends, which PyTorch's operator takes itself: what it makes of a NaN beside them
    differs from what it makes of one beside zeros."""
    return list(pads[:rank]) if pads and list(pads[:rank]) == list(pads[rank:]) else None


def conv_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, w, b = rand(2, 4, 7, 6, dtype=dtype), rand(6, 4, 3, 2, dtype=dtype), rand(6, dtype=dtype)
    return [
        Case((x, w, b)),
        Case((x, w), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
        Case((x, w, b), {"pads": [0, 1, 2, 0], "dilations": [2, 1]}),
        Case((x, rand(6, 2, 3, 2, dtype=dtype), b), {"group": 2, "pads": [1, 0, 1, 0]}),
        Case((x, rand(4, 1, 3, 3, dtype=dtype)), {"group": 4, "pads": [1, 1, 1, 1]}),
        Case((x, w, b), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        Case((x, w, b), {"auto_pad": "SAME_LOWER"}),
        Case((rand(2, 4, 9, dtype=dtype), rand(5, 4, 3, dtype=dtype)), {"strides": [2], "pads": [1, 1]}),
        Case((rand(1, 2, 4, 5, 4, dtype=dtype), rand(3, 2, 2, 3, 2, dtype=dtype), rand(3, dtype=dtype))),
    ]


def fused_conv(x, w, b=None, z=None, activation="Relu", activation_params=(), **how):  # type: ignore[no-untyped-def]
    y = conv(x, w, b, **how)
    y = y if z is None else y + z
    first, second = (*activation_params, None, None)[:2]
    ends = {
        "Relu": lambda: y.relu(),
        "Sigmoid": lambda: y.sigmoid(),
        "Tanh": lambda: y.tanh(),
        "LeakyRelu": lambda: F.leaky_relu(y, first),
        "Clip": lambda: y.clamp(first, second),
        "HardSigmoid": lambda: (y * first + second).clamp(0, 1),
    }
    return ends[activation]()


def fused_conv_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, w, b = rand(2, 4, 7, 6, dtype=dtype), rand(6, 4, 3, 2, dtype=dtype), rand(6, dtype=dtype)
    z = rand(2, 6, 5, 5, dtype=dtype)
    return [
        Case((x, w, b), {"activation": "Relu"}),
        Case((x, w, b, z), {"activation": "Relu"}),
        Case((x, w, None, z), {"activation": "Tanh"}),
        Case((x, w, b), {"activation": "Sigmoid", "strides": [2, 1], "pads": [1, 1, 1, 1]}),
        Case((x, w), {"activation": "LeakyRelu", "activation_params": [0.25], "pads": [0, 1, 2, 0]}),
        Case((x, w, b), {"activation": "Clip", "activation_params": [-0.7, 0.6], "auto_pad": "SAME_UPPER"}),
        Case((x, w), {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
        Case((x, rand(6, 2, 3, 2, dtype=dtype)), {"activation": "Relu", "group": 2}),
        Case((rand(2, 4, 9, dtype=dtype), rand(5, 4, 3, dtype=dtype)), {"activation": "Relu", "strides": [2]}),
    ]


def conv_transpose(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    group: int = 1,
) -> torch.Tensor:
    rank = x.dim() - 2
    run = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][rank - 1]
    padding = even_pads(pads, rank)
    y = run(x, w, b, strides or 1, padding or 0, output_padding or 0, group, dilations or 1)
    return y if padding else F.pad(y, [-p for p in pads_of(pads or [0] * 2 * rank)])


def conv_transpose_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, w = rand(2, 4, 5, 4, dtype=dtype), rand(4, 3, 3, 2, dtype=dtype)
    return [
        Case((x, w, rand(3, dtype=dtype))),
        Case((x, w), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}),
        Case((x, w, rand(3, dtype=dtype)), {"pads": [1, 0, 0, 1], "dilations": [1, 2]}),
        Case((x, w, rand(6, dtype=dtype)), {"group": 2}),
        Case((rand(2, 4, 6, dtype=dtype), rand(4, 3, 3, dtype=dtype)), {"strides": [2]}),
    ]


def max_pool(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    auto_pad: str = "NOTSET",
) -> tuple[torch.Tensor, ...]:
    rank = x.dim() - 2
    strides = strides or [1] * rank
    if auto_pad.startswith("SAME"):
        pads = same_pads(x, kernel_shape, strides, auto_pad)
    pads = list(pads or [0] * 2 * rank)
    run = [F.max_pool1d, F.max_pool2d, F.max_pool3d][rank - 1]
    options = {"stride": strides, "dilation": dilations or 1, "ceil_mode": bool(ceil_mode)}
    if pads[:rank] == pads[rank:]:
        y, at = run(x, kernel_shape, padding=pads[:rank], return_indices=True, **options)
        planes = torch.arange(x.size(0) * x.size(1)).view(x.size(0), x.size(1), *[1] * rank)
        return y, at + planes * x[0, 0].numel()
    return (run(F.pad(x, pads_of(pads), value=-torch.inf), kernel_shape, **options),)


def max_pool_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 7, 6, dtype=dtype)
    return [
        Case((x,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case((x,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, outputs=2),
        Case((x,), {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0]}),
        Case((x,), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        Case((x,), {"kernel_shape": [2, 2], "dilations": [2, 1], "strides": [2, 2], "ceil_mode": 1}, outputs=2),
        Case((rand(2, 3, 9, dtype=dtype),), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, outputs=2),
        Case((rand(1, 2, 4, 5, 6, dtype=dtype),), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}, outputs=2),
    ]


def average_pool(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> torch.Tensor:
    rank = x.dim() - 2
    pads = list(pads or [0] * 2 * rank)
    run = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
    options = {"stride": strides or 1, "ceil_mode": bool(ceil_mode)}
    if pads[:rank] == pads[rank:]:
        return run(x, kernel_shape, padding=pads[:rank], count_include_pad=bool(count_include_pad), **options)
    y = run(F.pad(x, pads_of(pads)), kernel_shape, **options)
    return y if count_include_pad else y / run(F.pad(torch.ones_like(x), pads_of(pads)), kernel_shape, **options)


def average_pool_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 7, 6, dtype=dtype)
    cube = Case((rand(1, 2, 4, 5, 6, dtype=dtype),), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]})
    return [
        Case((x,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case((x,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        Case((x,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        Case((x,), {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0]}),
        Case((x,), {"kernel_shape": [3, 2], "pads": [0, 1, 1, 0], "count_include_pad": 1}),
        Case((x,), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        Case((rand(2, 3, 9, dtype=dtype),), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        cube,
    ]


def spatial_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(2, 3, *d, dtype=dtype),)) for d in ((5,), (4, 3), (2, 3, 2))]


def lp_pool(
    x: torch.Tensor,
    kernel_shape: Sequence[int],
    p: int = 2,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
) -> torch.Tensor:
    n = len(kernel_shape)
    pads = pads or [0] * (2 * n)
    y = x.double().abs().pow(p)
    for i in range(n):
        extra = [0, 0] * (y.dim() - 1 - (2 + i)) + [pads[i], pads[i + n]]
        y = F.pad(y, extra)
        dilation, stride = (dilations or [1] * n)[i], (strides or [1] * n)[i]
        extent = dilation * (kernel_shape[i] - 1) + 1
        y = y.unfold(2 + i, extent, stride)[..., ::dilation].sum(-1)
    return y.pow(1 / p).to(x.dtype)


def lp_pool_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 7, 6, dtype=dtype)
    return [
        Case((x,), {"kernel_shape": [2, 3]}),
        Case((x,), {"kernel_shape": [3, 2], "p": 3, "strides": [2, 2], "pads": [1, 0, 1, 1]}),
        Case((x,), {"kernel_shape": [2, 2], "p": 1, "dilations": [2, 3]}),
        Case((rand(2, 3, 9, dtype=dtype),), {"kernel_shape": [3], "strides": [3]}),
    ]


def global_lp_pool(x: torch.Tensor, p: int = 2) -> torch.Tensor:
    return x.flatten(2).norm(p, -1).view(*x.shape[:2], *[1] * (x.dim() - 2))


def global_lp_pool_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(2, 3, 4, 5, dtype=dtype),)), Case((rand(2, 3, 7, dtype=dtype),), {"p": 3})]


def max_unpool(
    x: torch.Tensor,
    positions: torch.Tensor,
    shape: torch.Tensor | None = None,
    kernel_shape: Sequence[int] = (),
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    sizes = [(d - 1) * s + k for d, s, k in zip(x.shape[2:], strides or [1] * len(kernel_shape), kernel_shape)]
    full = [*x.shape[:2], *sizes]
    y = x.new_zeros(torch.Size(full).numel()).scatter(0, positions.reshape(-1), x.reshape(-1)).view(full)
    if shape is None:
        return y
    pads: list[int] = []
    for size, wanted in zip(reversed(full), reversed(shape.tolist())):
        pads += [0, wanted - size]
    return F.pad(y, pads)


def max_unpool_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 3, 2, 2, dtype=dtype)
    positions = torch.randperm(2 * 3 * 4 * 4)[: x.numel()].view(x.shape)
    how = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return [Case((x, positions), how), Case((x, positions, ints(2, 3, 5, 6)), how, constants=(2,))]


def col2im(
    x: torch.Tensor,
    image: torch.Tensor,
    block: torch.Tensor,
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
) -> torch.Tensor:
    sizes = (image.tolist(), block.tolist(), list(dilations), list(pads[:2]), list(strides))
    return torch.ops.aten.col2im(x, *sizes)


def col2im_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(2, 12, 12, dtype=dtype), ints(4, 5), ints(2, 2)), constants=(1, 2)),
        Case((rand(2, 18, 4, dtype=dtype), ints(4, 4), ints(3, 3)), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, (1, 2)),
        Case((rand(2, 8, 9, dtype=dtype), ints(5, 5), ints(2, 2)), {"dilations": [2, 2]}),
    ]


def lrn(x: torch.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> torch.Tensor:
    y = x.double()
    before = (size - 1) // 2
    pads = [0, 0] * (x.dim() - 2) + [before, size - 1 - before]
    total = F.pad(y.square(), pads).unfold(1, size, 1).sum(-1)
    return (y / (bias + alpha / size * total) ** beta).to(x.dtype)


def lrn_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 6, 3, 4, dtype=dtype)
    return [
        Case((x,), {"size": 3}),
        Case((x,), {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
        Case((rand(2, 5, dtype=dtype),), {"size": 5, "alpha": 0.25}),
    ]


ROWS = [
    Row("Conv", conv, conv_cases, no_forms=("size 4 as 0",)),
    Row("FusedConv", fused_conv, fused_conv_cases, "com.microsoft", tolerance=5e-2, no_forms=("size 4 as 0",)),
    Row("ConvTranspose", conv_transpose, conv_transpose_cases),
    Row("MaxPool", max_pool, max_pool_cases),
    Row("AveragePool", average_pool, average_pool_cases, wide=True),
    Row(
        "GlobalAveragePool",
        lambda x: x.mean(list(range(2, x.dim())), keepdim=True),
        spatial_cases,
    ),
    Row("GlobalMaxPool", lambda x: x.amax(list(range(2, x.dim())), keepdim=True), spatial_cases),
    Row("LpPool", lp_pool, lp_pool_cases),
    Row("GlobalLpPool", global_lp_pool, global_lp_pool_cases),
    Row("MaxUnpool", max_unpool, max_unpool_cases, grads=(0,), refuses=True),
    Row("Col2Im", col2im, col2im_cases),
    Row("LRN", lrn, lrn_cases),
]

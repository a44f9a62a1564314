"""Rows of the small operators around gradients and steps in ONNX Runtime's training graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..table import Case, Row, ints, rand, scalar

MICROSOFT = "com.microsoft"
Tensor = torch.Tensor


def special(dtype: torch.dtype) -> Tensor:
    return torch.tensor([[1.0, float("inf")], [float("nan"), 0.0]], dtype=dtype)


def batch_scale(x: Tensor, scale0: float, scale1: float, scale2: float | None = None) -> tuple[Tensor, ...]:
    return x * scale0, x * scale1, x * (scale2 or 1.0)


def batch_scale_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(3, 4, dtype=dtype)
    two = {"scale0": 0.5, "scale1": -2.0}
    return [Case((x,), two, outputs=2), Case((x,), {**two, "scale2": 0.25}, outputs=3)]


def scale(x: Tensor, factor: Tensor, scale_down: int = 0) -> Tensor:
    factor = factor.to(x.dtype)
    return x / factor if scale_down else x * factor


def scale_cases(dtype: torch.dtype) -> list[Case]:
    x, s = rand(3, 4, dtype=dtype), torch.tensor(4.0)
    return [Case((x, s)), Case((x, s.view(1)), {"scale_down": 1})]


def mixed_precision_scale(s: Tensor, *xs: Tensor, to: torch.dtype, fuse_outputs: int = 0) -> tuple[Tensor, ...]:
    out = tuple((x * s).to(to) for x in xs)
    return (torch.cat([y.flatten() for y in out]),) if fuse_outputs else out


def mixed_precision_scale_cases(dtype: torch.dtype) -> list[Case]:
    inputs = torch.tensor(0.5), rand(2, 3, dtype=dtype), rand(4, dtype=dtype)
    return [
        Case(inputs, {"to": torch.float32}, outputs=2),
        Case(inputs, {"to": torch.bfloat16, "fuse_outputs": 1}),
    ]


def all_finite(*xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    good = [~x.isinf() if isinf_only else ~x.isnan() if isnan_only else x.isfinite() for x in xs]
    return torch.stack([g.all() for g in good]).all()


def all_finite_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, dtype=dtype)
    nan, inf = special(dtype)[1], special(dtype)[0]
    return [
        Case((x, x)),
        Case((x, nan)),
        Case((nan,), {"isinf_only": 1}),
        Case((inf, x), {"isnan_only": 1}),
        Case((inf, x), {"isinf_only": 1}),
    ]


def accumulate(old: Tensor, value: Tensor, update: Tensor | None = None) -> Tensor:
    return old + value if update is None or bool(update) else old * 1


def accumulate_cases(dtype: torch.dtype) -> list[Case]:
    pair = rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype)
    return [Case(pair), *(Case((*pair, torch.tensor(flag)), constants=(2,)) for flag in (True, False))]


def accumulate_or_replace(old: Tensor, value: Tensor, replace: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.tensor([True]), old + value if replace is None or not bool(replace) else value * 1


def with_two_outputs(dtype: torch.dtype) -> list[Case]:
    return [Case(c.inputs, {}, c.constants, 2) for c in accumulate_cases(dtype)]


def reduce_sum(x: Tensor, axes: Tensor, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    if axes.numel() == 0 and noop_with_empty_axes:
        return x * 1
    return x.sum(axes.tolist() or list(range(x.dim())), keepdim=bool(keepdims))


def reduce_sum_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, 4, dtype=dtype)
    return [
        Case((x, ints(1)), {}, (1,)),
        Case((x, ints(-1, 0)), {"keepdims": 0}, (1,)),
        Case((x, ints()), {"keepdims": 0}, (1,)),
        Case((x, ints()), {"noop_with_empty_axes": 1}, (1,)),
        Case((x, ints(2)), {}),
    ]


def fake_quant(
    x: Tensor, scale: Tensor, zero: Tensor, quant_min: int = 0, quant_max: int = 255
) -> tuple[Tensor, Tensor]:
    q = (x / scale).detach().round() + zero
    mask = (q >= quant_min) & (q <= quant_max)
    value = (q.clamp(quant_min, quant_max) - zero) * scale
    return value.detach() + x * mask - (x * mask).detach(), mask


def fake_quant_cases(dtype: torch.dtype) -> Sequence[Case]:
    x, scale, zero = rand(3, 4, dtype=dtype), torch.tensor(0.25, dtype=dtype), torch.tensor(4.0, dtype=dtype)
    return [Case((x, scale, zero), {"quant_max": 10}, outputs=2), Case((x, scale, zero), {"quant_min": -3})]


ROWS = [
    Row("BatchScale", batch_scale, batch_scale_cases, MICROSOFT),
    Row("Scale", scale, scale_cases, MICROSOFT, grads=(0,)),
    Row("MixedPrecisionScale", mixed_precision_scale, mixed_precision_scale_cases, MICROSOFT, differentiable=False),
    Row("IsFinite", torch.isfinite, lambda t: [Case((special(t),))], MICROSOFT, differentiable=False),
    Row("IsAllFinite", all_finite, all_finite_cases, MICROSOFT, differentiable=False),
    Row("All", torch.all, lambda _: [Case((torch.tensor(v),)) for v in ([True], [True, False])], MICROSOFT, False),
    Row("Group", lambda *_: torch.tensor(True), lambda t: [Case((rand(2, dtype=t), scalar(1)))], MICROSOFT, False),
    Row(
        "ZeroGradient",
        lambda x, signal: torch.zeros_like(x),
        lambda t: [Case((rand(2, 3, dtype=t), rand(1, dtype=t)))],
        MICROSOFT,
        False,
    ),
    Row("InPlaceAccumulator", accumulate, accumulate_cases, MICROSOFT, False),
    Row("InPlaceAccumulatorV2", accumulate_or_replace, with_two_outputs, MICROSOFT, False),
    Row("ReduceSumTraining", reduce_sum, reduce_sum_cases, MICROSOFT),
    # Rounding passes the gradient on.
    Row("FakeQuant", fake_quant, fake_quant_cases, MICROSOFT, grads=(0,), smooth=False, wide=True),
]

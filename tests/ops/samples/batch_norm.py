"""Rows of batch norm, whole and in parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand

OWN = "ai.ortmodule"


def batch_norm_inputs(dtype: torch.dtype, *spatial: int) -> tuple[torch.Tensor, ...]:
    x = rand(4, 3, *spatial, dtype=dtype)
    return x, rand(3, dtype=dtype), rand(3, dtype=dtype), rand(3, dtype=dtype), rand(3, dtype=dtype, low=0.5)


def batch_norm_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case(batch_norm_inputs(dtype, *s), {"epsilon": 1e-4}) for s in ((), (5,), (3, 4))]


def batch_norm_training(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[torch.Tensor, ...]:
    mean, var = mean.clone(), var.clone()
    y = F.batch_norm(x, mean, var, scale, bias, True, momentum, epsilon)
    return y, mean, var


def batch_norm_training_cases(dtype: torch.dtype) -> Sequence[Case]:
    # No gradient flows through the running statistics, as in PyTorch: differences see one.
    return [
        Case(batch_norm_inputs(dtype, *s), {"momentum": m}, outputs=n, smooth=n == 1)
        for s, m, n in (((), 0.1, 3), ((5,), 0.3, 3), ((3, 4), 0.1, 3), ((3, 4), 0.1, 1))
    ]


def batch_norm_apply(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor):
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return ((x - mean.view(shape)) * invstd.view(shape) * w.view(shape) + b.view(shape)).to(x.dtype)


def batch_norm_apply_cases(dtype: torch.dtype) -> list[Case]:
    stats = torch.float64 if dtype == torch.float64 else torch.float32
    channels = [rand(3, dtype=stats), rand(3, dtype=stats), rand(3, dtype=stats), rand(3, dtype=stats, low=0.5)]
    return [Case((rand(*sizes, dtype=dtype), *channels)) for sizes in ((4, 3), (2, 3, 5), (2, 3, 4, 5))]


def broadcast_numbers(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return numbers.view((-1,) + (1,) * (x.dim() - 2))


def batch_statistics(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[torch.Tensor, ...]:
    _, new_mean, new_var = batch_norm_training(x, w, b, mean, var, epsilon, momentum)
    wide = x.double()
    axes = [i for i in range(x.dim()) if i != 1]
    now = wide.mean(axes)
    invstd = (wide.var(axes, correction=0) + epsilon).rsqrt()
    factor = w.double() * invstd
    shift = b.double() - now * factor
    of = torch.float64 if x.dtype == torch.float64 else torch.float32
    made = (now, invstd, broadcast_numbers(x, factor), broadcast_numbers(x, shift))
    return *(t.to(of) for t in made), new_mean, new_var


def batch_statistics_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case(batch_norm_inputs(dtype, *s), {"momentum": 0.3}, outputs=6) for s in ((), (5,), (3, 4))]


def batch_affine(x: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return (x * factor + shift).to(x.dtype)


def batch_affine_cases(dtype: torch.dtype) -> Sequence[Case]:
    of = torch.float64 if dtype == torch.float64 else torch.float32
    return [
        Case((rand(*sizes, dtype=dtype), *(broadcast_numbers(torch.empty(sizes), rand(3, dtype=of)) for _ in range(2))))
        for sizes in ((4, 3), (2, 3, 4, 5))
    ]


def batch_sums(
    dy: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    factor: torch.Tensor | None = None,
    y_shift: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    of = mean.dtype
    dy, x, axes = dy.double(), x.double(), [i for i in range(x.dim()) if i != 1]
    if factor is not None and y_shift is not None:
        dy = dy * (x * factor + y_shift > 0)
    plain, count = dy.sum(axes), x.numel() // x.shape[1]
    along = (dy * (x - broadcast_numbers(x, mean))).sum(axes) * invstd
    dy_factor = w.double() * invstd
    x_factor = -dy_factor * invstd * along / count
    shift = -dy_factor * plain / count - x_factor * mean
    made = (broadcast_numbers(x, t).to(of) for t in (dy_factor, x_factor, shift))
    return along.to(w.dtype), plain.to(w.dtype), *made


def batch_sums_cases(dtype: torch.dtype) -> Sequence[Case]:
    of = torch.float64 if dtype == torch.float64 else torch.float32
    cases = []
    for sizes in ((4, 3), (2, 3, 4, 5)):
        x = rand(*sizes, dtype=dtype)
        numbers = (rand(3, dtype=dtype), rand(3, dtype=of), rand(3, dtype=of, low=0.5))
        relu = tuple(broadcast_numbers(x, rand(3, dtype=of)) for _ in range(2))
        cases += [Case((rand(*sizes, dtype=dtype), x, *numbers, *more), outputs=5) for more in ((), relu)]
    return cases


def batch_input_gradient(
    dy: torch.Tensor, x: torch.Tensor, dy_factor: torch.Tensor, x_factor: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    return (dy * dy_factor + x * x_factor + shift).to(x.dtype)


def batch_input_gradient_cases(dtype: torch.dtype) -> Sequence[Case]:
    of = torch.float64 if dtype == torch.float64 else torch.float32
    return [
        Case((
            rand(*sizes, dtype=dtype), rand(*sizes, dtype=dtype),
            *(broadcast_numbers(torch.empty(sizes), rand(3, dtype=of)) for _ in range(3)),
        ))
        for sizes in ((4, 3), (2, 3, 4, 5))
    ]  # fmt: skip


ROWS = [
    Row("BatchNormStatistics", batch_statistics, batch_statistics_cases, OWN, differentiable=False, refuses=True),
    Row("BatchNormAffine", batch_affine, batch_affine_cases, OWN, differentiable=False),
    Row("BatchNormSums", batch_sums, batch_sums_cases, OWN, differentiable=False, refuses=True),
    Row("BatchNormInputGrad", batch_input_gradient, batch_input_gradient_cases, OWN, differentiable=False),
    Row("BatchNormApply", batch_norm_apply, batch_norm_apply_cases, OWN, differentiable=False, refuses=True),
    Row(
        "BatchNormalization",
        lambda x, s, b, mean, var, epsilon: F.batch_norm(x, mean, var, s, b, False, 0.1, epsilon),
        batch_norm_cases,
        grads=(0, 1, 2),
    ),
    Row("BatchNormTraining", batch_norm_training, batch_norm_training_cases, OWN, grads=(0, 1, 2)),
]

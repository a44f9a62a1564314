"""Parameters with gradients that are the same for two optimizers, and how far their results lie apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

SHAPES = ((64, 33), (129,), (3, 5, 7), (1,), ())
Optimizer = torch.optim.Optimizer


def parameters(
    shapes: Iterable[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(ps: Iterable[Tensor], step: int) -> None:
    """Those of a bowl with noise: a tenth of the parameter, and what the step draws."""
    generator = torch.Generator().manual_seed(1000 + step)
    for p in ps:
        noise = torch.randn(p.shape, generator=generator).to(p.dtype)
        p.grad = p.detach() * 0.1 + noise


def train(ps: list[nn.Parameter], optimizer: Optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        set_gradients(ps, step)
        optimizer.step()


def trained(make: Callable[[list[nn.Parameter]], Optimizer], steps: int, **how: object) -> list[nn.Parameter]:
    ps = parameters(**how)  # type: ignore[arg-type]
    train(ps, make(ps), steps)
    return ps


def same_bits(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q), f"{tuple(p.shape)}: {(p - q).abs().max()}"


def close(ours: Iterable[Tensor], theirs: Iterable[Tensor], rtol: float = 1e-6) -> None:
    """Each element within `rtol` of its own size, or of the tensor's largest."""
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=rtol * float(q.detach().abs().max()))

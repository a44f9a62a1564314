"""Shapes of results by trial: what no shape rule is known for is run on made-up tensors.

Where sizes are symbolic it runs at two choices of them, and the results' sizes are found again among the arguments'.
Not here: what is tried, the forward of a user's `autograd.Function` (function_call.py) and operators of torch's own
that have no shape rule (patches/shape_probes.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from .state.random_states import same_random_states

__all__ = ["UnknownSizeError", "results_by_trial"]

# Two sizes for each symbol of a shape.
_STEPS = (0, 3)
_Run = Callable[[Sequence[torch.Tensor], Sequence[int]], Sequence[torch.Tensor]]


class UnknownSizeError(Exception):
    """A result has a size that follows from no size of the arguments."""


def results_by_trial(run: _Run, xs: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
    """Fake results of `run` for fake tensors and symbolic sizes.

    Args:
        run: computes the results from real tensors and ints.
        xs, sizes: what it is called with in the trace.

    Raises:
        UnknownSizeError: where the results' sizes are not found among those of `xs`.
    """
    trials = []
    for step in _STEPS:
        with _real_tensors(), torch.no_grad():
            results = run([_made_up(x, step) for x in xs], [_size_at(s, step) for s in sizes])
            trials.append([(tuple(r.shape), r.dtype, r.device) for r in results])
    known = {(_size_at(d, _STEPS[0]), _size_at(d, _STEPS[1])): d for d in (*sizes, *(d for x in xs for d in x.shape))}
    like = xs[0] if xs else torch.empty(0)
    fakes = []
    for (first, dtype, device), (second, *_) in zip(*trials, strict=True):
        if len(first) != len(second):
            raise UnknownSizeError
        dims: list[Any] = [a if a == b else known.get((a, b)) for a, b in zip(first, second, strict=True)]
        if None in dims:
            raise UnknownSizeError
        fakes.append(like.new_empty(dims, dtype=dtype, device=device))
    return fakes


def _size_at(size: Any, step: int) -> int:
    """A size with `step` added to each of its symbols."""
    if isinstance(size, int):
        return size
    node = size.node
    symbols = node.expr.free_symbols
    return int(node.expr.subs({s: node.shape_env.size_hint(s) + step for s in symbols}))


def _made_up(fake: torch.Tensor, step: int) -> torch.Tensor:
    shape = [_size_at(d, step) for d in fake.shape]
    if fake.is_floating_point() or fake.is_complex():
        return torch.rand(shape, dtype=fake.dtype, device=fake.device)
    return torch.zeros(shape, dtype=fake.dtype, device=fake.device)


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    with unset_fake_temporarily(), disable_proxy_modes_tracing(), same_random_states():
        yield

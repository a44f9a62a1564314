"""Random numbers that a graph cannot draw: those of Python and numpy, and torch's after a forward seeds it.

A traced forward runs once. `random.random() < p` (layer drop, stochastic depth) would be decided for ever, and
`torch.manual_seed` would be lost together with its effect on every later draw. Such a forward is refused, so that it
runs in PyTorch and its sub-modules in the engine.

Not here: torch's own draws, which are operators of the graph.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..errors import CaptureError
from .compat import current_source_line
from .settings import replaced

__all__ = ["refused_randomness", "same_random_states"]

_SEEDING = ("manual_seed", "seed", "set_rng_state")


class _Source(NamedTuple):
    """Something that a forward may draw from besides torch's operators."""

    text: str
    state: Callable[[], Any]
    restore: Callable[[Any], object]


@contextlib.contextmanager
def same_random_states(module: torch.nn.Module) -> Iterator[None]:
    """Leaves every generator as it was, those that `module` holds too: a capture must not move the user's seeds."""
    states = [(source, source.state()) for source in _sources(module)]
    on_gpus = torch.cuda.is_available() and torch.cuda.is_initialized()
    gpus = torch.cuda.get_rng_state_all() if on_gpus else []
    try:
        yield
    finally:
        for source, state in states:
            source.restore(state)
        if on_gpus:
            torch.cuda.set_rng_state_all(gpus)


@contextlib.contextmanager
def refused_randomness(module: torch.nn.Module) -> Iterator[None]:
    """Within it, `module`'s forward runs on this thread.

    Raises:
        CaptureError: the forward drew from a generator of Python or numpy, or set the state of one of torch's.
    """
    before = [(source, source.state()) for source in _sources(module)]
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.random):
            for name in _SEEDING:
                stack.enter_context(replaced(owner, name, _refusing(name, getattr(owner, name), threading.get_ident())))
        yield
    for source, state in before:
        if not _equal(state, source.state()):
            raise CaptureError(f"the forward draws from {source.text}, once and for all if it were captured")


def _sources(module: torch.nn.Module) -> Iterator[_Source]:
    yield _Source("Python's generator (the module random)", random.getstate, random.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield _Source("numpy's generator (numpy.random)", numpy.random.get_state, numpy.random.set_state)
    yield _Source("torch's default generator in Python, or seeds it", torch.get_rng_state, torch.set_rng_state)
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            where = f"the generator '{prefix}.{name}'".replace("'.", "'")
            if isinstance(value, random.Random):
                yield _Source(where, value.getstate, value.setstate)
            elif isinstance(value, torch.Generator):
                yield _Source(where, value.get_state, value.set_state)
            elif numpy is not None and isinstance(value, numpy.random.RandomState):
                yield _Source(where, value.get_state, value.set_state)
            elif numpy is not None and isinstance(value, numpy.random.Generator):
                bits = value.bit_generator
                yield _Source(
                    where, functools.partial(getattr, bits, "state"), functools.partial(setattr, bits, "state")
                )


def _refusing(name: str, original: Callable[..., Any], thread: int) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            raise CaptureError(f"the forward calls torch.{name}, which a graph cannot repeat", current_source_line())
        return original(*args, **kwargs)

    return refuse


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b)

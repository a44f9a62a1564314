"""The generators that a forward may draw from, and what they were before.

Not here: whether a forward may draw from them in a graph (randomness.py).
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["Source", "random_sources", "same_random_states"]


class Source(NamedTuple):
    """Something that a forward may draw from besides torch's operators."""

    text: str
    state: Callable[[], Any]
    restore: Callable[[Any], object]


_TORCH = Source("torch's default generator", torch.default_generator.get_state, torch.default_generator.set_state)


@contextlib.contextmanager
def same_random_states(module: torch.nn.Module | None = None) -> Iterator[None]:
    """Leaves every generator as it was, those that `module` holds too: a capture must not move the user's seeds."""
    states = [(source, source.state()) for source in (*random_sources(module), _TORCH)]
    on_gpus = torch.cuda.is_available() and torch.cuda.is_initialized()
    gpus = torch.cuda.get_rng_state_all() if on_gpus else []
    try:
        yield
    finally:
        for source, state in states:
            source.restore(state)
        if on_gpus:
            torch.cuda.set_rng_state_all(gpus)


def random_sources(module: torch.nn.Module | None) -> Iterator[Source]:
    """Everything but torch's default generator, from which other threads may draw at any time."""
    yield Source("Python's generator (the module random)", random.getstate, random.setstate)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        yield Source("numpy's generator (numpy.random)", numpy.random.get_state, numpy.random.set_state)
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.RandomState, numpy.random.Generator)
    for prefix, child in module.named_modules() if module is not None else ():
        for name, value in vars(child).items():
            if not isinstance(value, kinds):
                continue
            where = f"the generator '{prefix}.{name}'".replace("'.", "'")
            if isinstance(value, random.Random):
                yield Source(where, value.getstate, value.setstate)
            elif numpy is not None and isinstance(value, numpy.random.Generator):
                bits = value.bit_generator
                yield Source(
                    where, functools.partial(getattr, bits, "state"), functools.partial(setattr, bits, "state")
                )
            else:
                held: Any = value
                yield Source(where, held.get_state, held.set_state)

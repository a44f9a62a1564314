"""Random numbers that a graph cannot draw: those of Python and numpy, and torch's after a forward seeds it.

A traced forward runs once. `random.random() < p` (layer drop, stochastic depth) would be decided for ever, and
`torch.manual_seed` would be lost together with its effect on every later draw. Such a forward is refused, so that it
runs in PyTorch and its sub-modules in the engine.

Not here: torch's own draws, which are operators of the graph; the generators (random_states.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import CaptureError
from .random_states import random_sources
from .settings import replaced
from .source_lines import current_source_line

__all__ = ["refused_randomness"]

_SEEDING = ("manual_seed", "seed", "set_rng_state")


@contextlib.contextmanager
def refused_randomness(module: torch.nn.Module) -> Iterator[None]:
    """Within it, `module`'s forward runs on this thread.

    Raises:
        CaptureError: the forward drew from a generator of Python or numpy, or set the state of one of torch's.
    """
    before = [(source, source.state()) for source in random_sources(module)]
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.random):
            for name in _SEEDING:
                stack.enter_context(replaced(owner, name, _refusing(name, getattr(owner, name), threading.get_ident())))
        yield
    for source, state in before:
        if not _equal(state, source.state()):
            raise CaptureError(f"the forward draws from {source.text}, once and for all if it were captured")


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

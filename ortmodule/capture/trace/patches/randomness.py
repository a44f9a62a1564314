"""Random numbers that a graph cannot draw: those of Python and numpy, and torch's after a forward seeds it.

A traced forward runs once. `random.random() < p` (layer drop, stochastic depth) would be decided for ever, and
`torch.manual_seed` would be lost together with its effect on every later draw. Such a forward is refused, so that it
runs in PyTorch and its sub-modules in the engine.

Not here: torch's own draws, which are operators of the graph; the generators (random_states.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....errors import CaptureError
from ...source_lines import current_source_line
from ..patching import FORWARD, Around, Patch
from ..state.random_states import random_sources
from ..tracing import TraceState

__all__ = ["PATCHES"]


@contextlib.contextmanager
def _undrawn(state: TraceState) -> Iterator[None]:
    """Raises CaptureError at its end where the forward drew from a generator of Python, numpy or a module's own."""
    before = [(source, source.state()) for source in random_sources(state.module)]
    yield
    for source, generator in before:
        if not _equal(generator, source.state()):
            raise CaptureError(f"the forward draws from {source.text}, once and for all if it were captured")


def _refusing(name: str) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise CaptureError(f"the forward calls torch.{name}, which a graph cannot repeat", current_source_line())

        return refuse

    return make


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b)


PATCHES = (
    Around(_undrawn, during=FORWARD),
    *(
        Patch(owner, name, _refusing(name), during=FORWARD)
        for owner in (torch, torch.random)
        for name in ("manual_seed", "seed", "set_rng_state")
    ),
)

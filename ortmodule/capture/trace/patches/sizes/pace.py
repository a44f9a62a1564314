"""Ends a capture whose symbolic sizes grow beyond what torch can reason about.

Sizes that are rounded up to whole windows and sliced back, block after block, become expressions that keep sympy busy
for minutes at one operator: a Swin transformer at a second picture size. A trace that spends seconds of processor time
on a few operators is such a one. Not here: what is captured instead (graph_transition).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .....errors import SlowCaptureError
from ...patching import Around, Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

# Processor seconds that so many operators in a row may take; usual are 0.1 to 0.7.
SECONDS = 6.0
OPERATORS = 32


class _Pace:
    """Counts the traced operators."""

    def __init__(self) -> None:
        self.operators = 0
        self._begin()

    def _begin(self) -> None:
        self.wall, self.start = time.perf_counter(), time.thread_time()

    def traced(self) -> None:
        self.check()
        self.operators += 1
        if self.operators % OPERATORS == 0:
            self._begin()

    def check(self) -> None:
        # A processor's time is a system call, a wall's is none.
        if time.perf_counter() - self.wall > SECONDS and time.thread_time() - self.start > SECONDS:
            raise SlowCaptureError(
                f"tracing with symbolic sizes took more than {SECONDS:g} s for {OPERATORS} operators: the expressions "
                "for the sizes grow from operator to operator"
            )


def _before(act: Callable[[], None]) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        def acting(*args: Any, **kwargs: Any) -> Any:
            act()
            return original(*args, **kwargs)

        return acting

    return make


@contextlib.contextmanager
def _bounded(state: TraceState) -> Iterator[None]:
    """Within it the trace raises SlowCaptureError where it hardly moves on."""
    pace = _Pace()
    state.place(Patch(FakeTensorMode, "dispatch", _before(pace.traced)))
    state.place(Patch(ShapeEnv, "evaluate_expr", _before(pace.check)))
    yield


ORDER = 1  # around what else is done where an expression is evaluated (../questions/inputs.py)
PATCHES = (Around(_bounded, when=lambda state: state.symbolic),)

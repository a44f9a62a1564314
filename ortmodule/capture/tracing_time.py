"""Ends a capture whose symbolic sizes grow beyond what torch can reason about.

Sizes that are rounded up to whole windows and sliced back, block after block, become expressions that keep sympy busy
for minutes at one operator: a Swin transformer at a second picture size. A trace that spends seconds of processor time
on a few operators is such a one. Not here: what is captured instead (graph_transition).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..errors import SlowCaptureError
from .settings import replaced

__all__ = ["bounded_tracing"]

# Processor seconds that so many operators in a row may take; usual are 0.1 to 0.7.
SECONDS = 6.0
OPERATORS = 32


class _Pace:
    """Counts the traced operators of one thread."""

    def __init__(self) -> None:
        self.operators = 0
        self.start = time.thread_time()

    def traced(self) -> None:
        self.check()
        self.operators += 1
        if self.operators % OPERATORS == 0:
            self.start = time.thread_time()

    def check(self) -> None:
        if time.thread_time() - self.start > SECONDS:
            raise SlowCaptureError(
                f"tracing with symbolic sizes took more than {SECONDS:g} s for {OPERATORS} operators: the expressions "
                "for the sizes grow from operator to operator"
            )


@contextlib.contextmanager
def bounded_tracing() -> Iterator[None]:
    """Within it this thread's trace raises SlowCaptureError where it hardly moves on."""
    thread, pace = threading.get_ident(), _Pace()

    def before(original: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                act()
            return original(*args, **kwargs)

        return dispatch

    with (
        replaced(FakeTensorMode, "dispatch", before(FakeTensorMode.dispatch, pace.traced)),
        replaced(ShapeEnv, "evaluate_expr", before(ShapeEnv.evaluate_expr, pace.check)),
    ):
        yield

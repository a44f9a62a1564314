"""The capture that runs: what it is about, what it has found so far, and whose thread it is.

torch's tracing and what a capture replaces are process-wide, so one capture runs at a time (`LOCK`). Everybody else
sees torch as it was: `patching.py` sends the calls of other threads to what it has replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ... import _C
from ...errors import CaptureError
from .branches import Branches
from .function_call import FunctionCall
from .messages import Messages
from .repeats.repeats import Repeats
from .side_outputs import SideOutputs

__all__ = ["LOCK", "TraceState", "TracingAnswer", "captured_elsewhere", "current_trace", "running"]

LOCK = threading.RLock()


@dataclasses.dataclass
class TracingAnswer:
    """What the forward hears where it asks whether it is traced.

    Attributes:
        is_traced: the answer.
        was_asked: whether it did.
    """

    is_traced: bool = False
    was_asked: bool = False


@dataclasses.dataclass
class TraceState:
    """What the patches of one capture know and collect.

    Attributes:
        module: the module that is traced.
        side_outputs: hears what the forward looks at and sets on its modules.
        branches: answers what the forward asks about its inputs; None: such a question ends the trace.
        symbolic: whether any size is symbolic.
        from_one: whether symbolic sizes may be 1.
        calls: the traced calls of custom autograd Functions.
        asked: what of the call's settings the forward asked about (scope_settings.py).
        uncopied: the memories of tensors that `contiguous()` has given back as they were.
        region_numbers: names the regions that are computed again in backward.
        audit: hears of the forward.
        repeats: the blocks that are traced once; None: each is.
        messages: hears what it says.
        loggers: with a level that each was asked whether it writes at.
        tracing: what the forward is told of the trace.
        forward_runs: whether the module's forward runs: torch's export calls modules of its own around it.
        refusal: why no graph is made of the forward, in case that it catches the error.
        tried_imports: modules that were imported for this trace, or could not be (patches/imports.py).
        away: modes before torch's functions, out of the way while a function in Python runs that has asked them.
        place: puts a further patch in place until the trace ends; set by the installer.
        thread: the one that captures.
    """

    module: torch.nn.Module
    side_outputs: SideOutputs
    branches: Branches | None = None
    symbolic: bool = False
    from_one: bool = False
    calls: list[FunctionCall] = dataclasses.field(default_factory=list)
    asked: set[str] = dataclasses.field(default_factory=set)
    uncopied: set[int] = dataclasses.field(default_factory=set)
    region_numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    audit: Any = None
    repeats: Repeats | None = None
    messages: Messages = dataclasses.field(default_factory=Messages)
    loggers: _C.HeardPairs = dataclasses.field(default_factory=_C.HeardPairs)
    tracing: TracingAnswer = dataclasses.field(default_factory=TracingAnswer)
    forward_runs: bool = False
    refusal: CaptureError | None = None
    tried_imports: frozenset[str] = frozenset()
    away: list[Any] = dataclasses.field(default_factory=list)
    place: Callable[[Any], None] = lambda patch: None
    thread: int = dataclasses.field(default_factory=threading.get_ident)

    def is_here(self) -> bool:
        """Whether the caller runs on the capturing thread."""
        return threading.get_ident() == self.thread

    def refused(self, text: str) -> CaptureError:
        """The error that ends the trace, whether it reaches its end or not."""
        self.refusal = self.refusal or CaptureError(text)
        return self.refusal

    @contextlib.contextmanager
    def user_code(self) -> Iterator[None]:
        """Within it, the user's code runs within torch's: the audit hears of it."""
        if self.audit is not None:
            self.audit.resume()
        try:
            yield
        finally:
            if self.audit is not None:
                self.audit.pause()


_running: list[TraceState] = []


@contextlib.contextmanager
def running(state: TraceState) -> Iterator[None]:
    """Within it, `state` is the capture that runs."""
    _running.append(state)
    try:
        yield
    finally:
        _running.pop()


def current_trace() -> TraceState | None:
    """The capture that runs on this thread, if any."""
    return next((state for state in reversed(_running) if state.is_here()), None)


def captured_elsewhere() -> bool:
    """Whether another thread captures at this moment."""
    return any(not state.is_here() for state in _running)

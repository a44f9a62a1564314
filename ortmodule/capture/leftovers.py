"""Frees what a capture leaves behind, at its end.

torch's tracing ends in cycles: the tracer, its fake tensors, the exported program and the frames of an exception refer
to one another, and to the module and the tensors of the example call. Until Python's collector happens to look at them,
which may be many steps later, they would keep a dropped module's memory.

So the collector is held back while a capture runs, and then looks at the youngest generation alone, which is what was
made since. That costs what the capture made, not what the process holds; the collections that it would have run
meanwhile cost more. What a caller still holds of a capture (its audit) outlives such a look, so that the outermost
function that `leaves_nothing` is the one that counts. Not here: our own objects, which form no cycles.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from . import torch_private
from .interrupts import interrupts_raised_again

__all__ = ["leaves_nothing"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_YOUNGEST = 0


class _Collector:
    """Python's collector, held back while captures run, in whichever threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._held = False  # whether it is to go on afterwards

    def hold(self) -> None:
        with self._lock:
            self._captures += 1
            if gc.isenabled():
                gc.disable()
                self._held = True

    def release(self) -> None:
        with self._lock:
            self._captures -= 1
            last = self._captures == 0
        if last:
            torch_private.forget_last_trace()
            gc.collect(_YOUNGEST)  # which may run anything
            with self._lock:
                if self._captures == 0 and self._held:
                    gc.enable()
                    self._held = False


_COLLECTOR = _Collector()


def leaves_nothing(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that captures, so that nothing stays of it but its result, or its error without the frames."""

    @functools.wraps(function)
    def freed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        handled = sys.exception()
        with interrupts_raised_again():
            _COLLECTOR.hold()
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                _release_frames(error, handled)
                raise
            finally:
                _COLLECTOR.release()

    return freed


def _release_frames(error: BaseException, handled: BaseException | None) -> None:
    """Lets the error, and what caused it, go of the frames that ended in them; where those were is kept as text.

    What the caller was handling before is not touched. To empty the frames would not do: a frame keeps its function's
    closure, and torch's have the trace in theirs.
    """
    seen = {id(handled)}
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        pending += (found.__cause__, found.__context__)
        if found.__traceback__ is not None:
            found.add_note("Raised at\n" + "".join(traceback.format_tb(found.__traceback__)).rstrip())
            found.__traceback__ = None

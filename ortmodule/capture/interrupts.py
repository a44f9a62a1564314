"""A Ctrl-C that comes while Python runs a weak reference's callback or a finalizer, of which a capture has thousands.

CPython prints such an exception and goes on: the program would not end. Here it is raised once more.
Not here: where one is held back for a while (trace/patching.py).
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["interrupts_raised_again"]


_DELAY = 0.002  # seconds, in which the callback is over


def _interrupt() -> None:
    time.sleep(_DELAY)
    _thread.interrupt_main()


@contextlib.contextmanager
def interrupts_raised_again() -> Iterator[None]:
    """Within it, no KeyboardInterrupt is lost."""
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if issubclass(found.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(_interrupt, ())  # at once it would be raised in this function, and lost again
        else:
            before(found)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before

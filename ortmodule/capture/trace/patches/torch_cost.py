"""What a trace of torch's says and does beside the point: pages of logs, source lines by the megabyte, random numbers.

- torch logs pages about a size or a shape that export trips over, and prints the graph as far as it came; CaptureError
  says the same in a sentence.
- torch notes the whole stack with each node and reads the source of each of its own files for it, a tenth of the time
  and 3 MB that stay; lines of torch's files are left empty.
- the numbers that torch gives a collective's handle are drawn from Python's generator, as if the forward drew them.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import linecache
import logging
from collections.abc import Iterator
from typing import Any

import torch.export._trace as export_trace

from ...source_lines import TORCH_ROOT
from ..patching import Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
_handle_numbers = itertools.count(10**9 + 1)  # torch's end before


@contextlib.contextmanager
def _quiet(state: TraceState) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _silent(original: Any, state: TraceState) -> Any:
    return lambda *args, **kwargs: None


def _but_torch_lines(original: Any, state: TraceState) -> Any:
    def line(filename: str, *args: Any, **kwargs: Any) -> str:
        return "" if filename.startswith(TORCH_ROOT) else original(filename, *args, **kwargs)

    return line


def _counted(original: Any, state: TraceState) -> Any:
    return functools.partial(next, _handle_numbers)


PATCHES = (
    Around(_quiet),
    Patch(export_trace, "print", _silent, default=builtins.print),  # the module's own name hides the builtin there
    Patch(linecache, "getline", _but_torch_lines),
    Patch("torch.distributed._meta_registrations", "generate_unique_id", _counted),
)

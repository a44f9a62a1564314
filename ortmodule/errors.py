"""Every exception that ORTModule raises on purpose.

One small tree, so that a caller can catch `ORTModuleError` for all of them or one kind. The C++ core raises the same
types through the bindings. A failure of ours (a broken invariant, never the user's doing) is `InternalError`.
No message is formatted here: the text is built where the failure is known, but for the hint that many of them end with.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

__all__ = [
    "CaptureError",
    "ChangedValueError",
    "FilledCacheError",
    "IndexOutOfRangeError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidGraphError",
    "LimitError",
    "LinearAlgebraError",
    "ORTModuleError",
    "OperatorNotImplementedError",
    "OutOfMemoryError",
    "SlowCaptureError",
    "TerminatedError",
    "UndecidedError",
    "UnfitCallError",
    "UnfitError",
    "UnsupportedError",
]


class ORTModuleError(RuntimeError):
    """Base of every error that ORTModule raises on purpose."""


class CaptureError(ORTModuleError):
    """The module cannot be turned into one training graph.

    Attributes:
        reason: what could not be captured, in a sentence.
        source_line: the line of the user's code that caused it, as `file.py:12: code`, or None when it is not known.
        differentiates: whether the forward itself computes gradients, which may have to be differentiated again.
    """

    def __init__(self, reason: str, source_line: str | None = None, differentiates: bool = False) -> None:
        super().__init__(reason if source_line is None else f"{reason}\n  at {source_line}")
        self.reason = reason
        self.source_line = source_line
        self.differentiates = differentiates


class ChangedValueError(CaptureError):
    """The forward changes a Python value that a graph would bake in. A later call may find that it stays now.

    Attributes:
        changed: the objects that it changes, as far as they are known.
        counters: (class, attribute) of whole numbers that it changes on objects that it is given.
    """

    def __init__(
        self,
        reason: str,
        source_line: str | None = None,
        changed: Sequence[Any] = (),
        counters: Sequence[tuple[type, str]] = (),
    ) -> None:
        super().__init__(reason, source_line)
        self.changed, self.counters = changed, counters


class GivenChangeError(CaptureError):
    """The forward changes a list, a dict or an object that it is given, where a gradient is wanted."""


class UndecidedError(CaptureError):
    """The forward branches on what only the data say. With the branch taken as a call takes it, it may be captured."""


class UnloadedModuleError(CaptureError):
    """The forward imports Python modules that are not loaded yet: they are to be imported before it is traced again.

    Attributes:
        names: of the modules.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"the forward imports {', '.join(names)}, which no import has loaded before")
        self.names = tuple(names)


class UnfitError(CaptureError):
    """A graph that was captured from another example does not hold for the call."""


class UnfitCallError(CaptureError):
    """What this call is given keeps it out of the engine; other calls of its kind are captured."""


class SharedMemoryError(UnfitCallError):
    """This call's arguments share memory that the forward writes; calls whose arguments do not are captured."""


class WrittenHistoryError(UnfitCallError):
    """The forward writes into a tensor of this call that wants a gradient, and with its values changes its history."""


class FilledCacheError(UnfitCallError):
    """This call fills a cache with tensors; calls that find them there are captured."""


class SlowCaptureError(ORTModuleError):
    """Torch's arithmetic on the symbolic sizes takes too long; with these sizes fixed the capture may be quick."""


class InvalidGraphError(ORTModuleError):
    """A graph or an ONNX file breaks a rule of the format: a cycle, a missing value, a wrong type, truncated bytes."""


class LimitError(InvalidGraphError):
    """A model, or a run of it, asks for more than the limits of `SessionOptions` allow: nodes, memory, time."""


class UnsupportedError(ORTModuleError):
    """The graph is well formed but asks for something that this version does not implement."""


class InvalidArgumentError(ORTModuleError, ValueError):
    """A value given by the caller is wrong: a tensor of another dtype, a missing input, an unknown option."""


class IndexOutOfRangeError(ORTModuleError, IndexError):
    """A position, a row of a table or a class label, is outside of what it points into. PyTorch raises IndexError."""


class OperatorNotImplementedError(ORTModuleError, NotImplementedError):
    """PyTorch has no kernel, or no gradient, of an operator for what it was given, and raises NotImplementedError."""


class LinearAlgebraError(ORTModuleError, torch.linalg.LinAlgError):
    """A matrix cannot be inverted or decomposed. PyTorch raises `torch.linalg.LinAlgError`."""


class OutOfMemoryError(ORTModuleError, torch.OutOfMemoryError):
    """A device has no memory left. PyTorch raises `torch.OutOfMemoryError`."""


class TerminatedError(ORTModuleError):
    """A run was ended early, by `RunOptions.terminate`."""


class InternalError(ORTModuleError):
    """An invariant of ORTModule was broken; this is a bug of ours and worth a report."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as "; did you mean 'dropout'?", or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""

"""What a traced forward says: warnings, and lines of a log.

Nothing is said while it is traced. Each call of the graph says it anew, to the filters and handlers of that moment:
Python's own "once for each line of code" holds as it does without a capture. What only the first call says (a function
with a cache, torch's warnings in C++) is said at the end of the trace, and never again.

Said is what the user's code says, or code that it calls; what torch says of tracing is not. A message that has to be
made at each call (of a tensor's values, of a size that varies) is a reason to run in PyTorch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...errors import CaptureError

__all__ = ["Messages", "SaidLine", "SaidWarning", "raising", "same_registries"]

_REGISTRY = "__warningregistry__"
# Parts of torch that run in a trace and not in a call.
_OF_TRACES = (
    "torch._subclasses", "torch._dynamo", "torch._functorch", "torch._ops", "torch._export",
    "torch._higher_order_ops",
    "torch._decomp", "torch._refs", "torch._prims", "torch._meta_registrations", "torch._inductor", "torch._logging",
    "torch._library", "torch._guards", "torch._dispatch", "torch._custom_op", "torch._C", "torch.fx", "torch.export",
    "torch.utils._", "ortmodule", "sympy",
)  # fmt: skip
# What stands between a function of torch and itself where a trace has modes that see its calls.
_OF_MODES = frozenset({"handle_torch_function", "__torch_function__"})
# What stands between who says something and who hears it.
_BETWEEN = ("warnings", "logging", "logging.handlers", "contextlib", "functools")
_IN_CPP = "(Triggered internally at"
# How a tensor or a number of a trace shows in a text.
_OF_TRACE = re.compile(r"FakeTensor\(|\b(?:s|u|zf|zuf)\d+\b")


@dataclasses.dataclass(frozen=True)
class SaidWarning:
    """A warning, and where Python keeps that it was shown."""

    message: Warning
    filename: str
    line: int
    module: str
    registry: dict[Any, Any]

    def say(self) -> None:
        warnings.warn_explicit(
            self.message, type(self.message), self.filename, self.line, module=self.module, registry=self.registry
        )

    def raises(self) -> bool:
        """Whether a filter makes it an error at this moment."""
        for action, text, category, module, line in warnings.filters:
            if _fits(text, str(self.message)) and _fits(module, self.module) and line in (0, self.line):
                if issubclass(type(self.message), category):
                    return action == "error"
        return str(getattr(warnings, "defaultaction", "default")) == "error"


def _fits(pattern: Any, text: str) -> bool:
    if pattern is None or isinstance(pattern, str):
        return pattern is None or pattern == text
    return pattern.match(text) is not None


@dataclasses.dataclass(frozen=True)
class SaidLine:
    """A record of a logger."""

    logger: logging.Logger
    record: logging.LogRecord

    def say(self) -> None:
        if not self.logger.isEnabledFor(self.record.levelno):
            return
        was = self.record
        made = self.logger.makeRecord(
            was.name,
            was.levelno,
            was.pathname,
            was.lineno,
            was.getMessage(),
            (),
            None,
            was.funcName,
            None,
            was.stack_info,
        )
        vars(made).update((name, value) for name, value in vars(was).items() if name not in vars(made))
        self.logger.handle(made)

    def raises(self) -> bool:
        return False


def raising(said: list[SaidWarning | SaidLine]) -> bool:
    """Whether one of the messages would be an error, which ends a call."""
    return any(one.raises() for one in said)


class Messages:
    """What one trace hears.

    Attributes:
        said: what each call says.
        once: what is said when the trace is over.
    """

    def __init__(self) -> None:
        self.said: list[SaidWarning | SaidLine] = []
        self.once: list[SaidWarning | SaidLine] = []
        self._error: CaptureError | None = None
        self._cached: list[tuple[SaidWarning | SaidLine, list[types.CodeType]]] = []
        self._earlier = self._cached[:]  # of earlier runs of the trace

    @property
    def count(self) -> int:
        """How much was said so far."""
        return len(self.said) + len(self.once) + (self._error is not None)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Within it, the forward runs. Raises CaptureError at its end where what it says cannot be said again."""
        self._earlier += self._cached
        self.said, self._cached, self._error = [], [], None
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            filters = list(warnings.filters)

            def show(message: Any, category: Any, filename: str, line: int, *further: Any) -> None:
                if warnings.filters != filters:
                    self._refuse("the forward warns under filters of its own, which a captured graph does not know")
                else:
                    self.warned(message, filename, line)

            warnings.showwarning = show  # type: ignore[assignment]
            yield
            if warnings.filters != filters:
                self._refuse("the forward leaves the filters of warnings changed, which a captured graph cannot repeat")
        if self._error is not None:
            raise self._error

    def _refuse(self, text: str) -> None:
        self._error = self._error or CaptureError(text)

    def warned(self, message: Any, filename: str, line: int) -> None:
        """Hears of a warning, at the moment that it is shown."""
        found = _frames_that_say()
        if found is None:
            return
        frames, every = found
        level = next((i for i, f in enumerate(every) if (f.f_code.co_filename, f.f_lineno) == (filename, line)), None)
        if level is None or level >= len(frames):
            self._refuse("the forward warns of a line outside of it, which a captured graph does not know")
            return
        scope, file = frames[level].f_globals, frames[level].f_code.co_filename
        module, registry = str(scope.get("__name__") or "<unknown>"), scope.setdefault(_REGISTRY, {})
        self._add(SaidWarning(message, file, frames[level].f_lineno, module, registry), frames)

    def logged(self, logger: logging.Logger, record: logging.LogRecord) -> bool:
        """Hears of a line; returns False where it is torch's, of tracing."""
        found = _frames_that_say()
        if found is None:
            return _is_said_at_each_call()
        if record.exc_info or any(isinstance(arg, torch.SymInt) for arg in _arguments(record)):
            self._refuse("the forward logs what a captured graph does not know: an exception, or a size that varies")
        else:
            self._add(SaidLine(logger, record), found[0])
        return True

    def _add(self, one: SaidWarning | SaidLine, frames: list[types.FrameType]) -> None:
        text = str(one.message) if isinstance(one, SaidWarning) else one.record.getMessage()
        if _OF_TRACE.search(text):
            self._refuse(f"the forward says something else at each call: {text[:80]}")
        elif _IN_CPP in text:
            self.once.append(one)
        else:
            self.said.append(one)
            self._cached.append((one, [frame.f_code for frame in frames]))

    def settle(self, caches: Iterable[Any], put_back: Iterable[Any] = ()) -> list[SaidWarning | SaidLine]:
        """Called at the end of the trace: what a cached function says, it says once.

        Args:
            caches: functions with a cache.
            put_back: those of them that hold nothing of earlier runs of the trace, and of this one only where a graph
                of it is kept.

        Returns:
            What those say, if a graph is kept.
        """
        earlier, self._earlier = self._earlier, []
        last, self._cached = self._cached, []
        if not earlier and not last:
            return []
        anew = _codes(put_back)
        lasting = _codes(caches) - anew
        self.once += [one for one, ran in (*earlier, *last) if not lasting.isdisjoint(ran)]
        self.said = [one for one, ran in last if anew.isdisjoint(ran) and lasting.isdisjoint(ran)]
        return [one for one, ran in last if not anew.isdisjoint(ran) and lasting.isdisjoint(ran)]

    def say_once(self) -> None:
        """Says what only the first call says."""
        once, self.once = self.once, []
        for one in once:
            one.say()


def _codes(caches: Iterable[Any]) -> set[Any]:
    return {getattr(cache.__wrapped__, "__code__", None) for cache in caches}


def _arguments(record: logging.LogRecord) -> list[Any]:
    given = record.args or ()
    return list(given.values() if isinstance(given, dict) else given)


def _frames_that_say() -> tuple[list[types.FrameType], list[types.FrameType]] | None:
    """The frames of the forward that says something, the innermost first: those that there are without a trace, and
    all. None where it is torch that speaks of its trace, or a custom autograd Function, which runs at each call.
    """
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and _is_between(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    found: list[types.FrameType] = []
    every: list[types.FrameType] = []
    by_user = between = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name == "ortmodule.capture.trace.wrapper":
            return (found, every) if by_user else None
        of_trace, of_mode = name.startswith(_OF_TRACES), frame.f_code.co_name in _OF_MODES
        if name == "ortmodule.capture.trace.function_call" or (of_trace and not of_mode and not by_user):
            return None
        every.append(frame)
        if of_trace or of_mode:
            between = True
        elif not (between and found and frame.f_code is found[-1].f_code):  # one of torch's that a mode calls again
            found.append(frame)
            between = False
            by_user = by_user or not name.startswith("torch.") or name.startswith("torch.nn.")
        frame = frame.f_back
    return None


def _is_said_at_each_call() -> bool:
    """Whether it is a custom autograd Function that speaks."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "ortmodule.capture.trace.function_call":
        frame = frame.f_back
    return frame is not None


def _is_between(name: str) -> bool:
    return name in _BETWEEN or name.startswith("ortmodule.")


# -- what Python remembers of warnings --------------------------------------------------------------------------------


@contextlib.contextmanager
def same_registries() -> Iterator[None]:
    """Leaves what Python remembers of shown warnings as it is, which it forgets whenever a filter is changed."""
    version = _version()
    before = [(table, dict(table)) for table in _registries() if table.get("version") == version]
    try:
        yield
    finally:
        version = _version()
        for table, held in before:
            table.clear()
            table.update(held, version=version)


def _registries() -> list[dict[Any, Any]]:
    found = []
    for module in list(sys.modules.values()):
        table = getattr(module, "__dict__", {}).get(_REGISTRY)
        if isinstance(table, dict) and table:
            found.append(table)
    return found


def _version() -> Any:
    """The version of the filters, which Python tells to a registry alone."""
    registry: dict[Any, Any] = {}
    show, warnings.showwarning = warnings.showwarning, lambda *args, **kwargs: None
    try:
        warnings.warn_explicit("", UserWarning, "<ortmodule>", 0, registry=registry)
    except UserWarning:
        pass
    finally:
        warnings.showwarning = show
    return registry.get("version")

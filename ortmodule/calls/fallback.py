"""What becomes of calls that no graph is made of: PyTorch runs them, the engine their parts; it is said once.

A kind of call (sizes do not count) is tried once, for an attempt costs a second; after a few kinds the module stays in
PyTorch. A kind whose forward changed a Python value, as on a first call it may, is tried once more.

Not here: which parts there are (parts.py), how a call is tried (engine_call.py).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import nn

from .. import _C
from ..errors import CaptureError, ChangedValueError
from ..graph_transition.built_sessions import BuiltSession
from ..report import Export, SessionReport

__all__ = ["Fallback", "Part"]

# How many kinds of calls may fail to be captured before the module stays in PyTorch.
_MOST_KINDS = 4


class Part(Protocol):
    """A sub-module whose forward can be led to the engine."""

    def install(self) -> None: ...
    def remove(self) -> None: ...
    def session_reports(self) -> Iterator[SessionReport]: ...
    def built_sessions(self) -> Iterator[BuiltSession]: ...
    def derived_sessions(self) -> Iterator[_C.Session]: ...
    def exports(self) -> Iterator[Export]: ...


class Fallback:
    """Which calls of a module no graph is made of; runs them. Pickled and copied without what its parts compiled.

    Args:
        module: the module.
        make_parts: makes those of its sub-modules that may run in the engine.
        is_part: whether the module is a part itself: nothing is said, and the first failure is the last.
        alike: classes of parts, with the look of their calls, that change what they are given where a gradient is
            wanted. It is one for all parts of a module: equal layers, of which each would be traced to find the same.

    Attributes:
        reasons: by kind of call, why it was not captured.
    """

    def __init__(
        self,
        module: nn.Module,
        make_parts: Callable[[], Sequence[Part]],
        is_part: bool = False,
        alike: set[Any] | None = None,
    ) -> None:
        self._module, self._make_parts, self._is_part = module, make_parts, is_part
        self._most_kinds = 1 if is_part else _MOST_KINDS
        self._unsettled: dict[Any, bool] = {}  # kinds whose forward changed a value; whether to try once more
        self.alike = set[Any]() if alike is None else alike  # (class, look)
        self._whole = False  # whether no part is left to the engine
        self._parts: Sequence[Part] | None = None
        self._lock = threading.Lock()
        self._running = 0
        self._said: set[str] = set()  # what has been warned of around calls
        self.reasons: dict[Any, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None, "_lock": None, "_running": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`eager(*args, **kwargs)`, with the parts in place of the sub-modules' forwards."""
        if self._parts is None:
            self._parts = () if self._whole else self._make_parts()
        parts = self._parts
        with self._lock:
            self._running += 1
            if self._running == 1:
                for part in parts:
                    part.install()
        try:
            return eager(*args, **kwargs)
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    for part in parts:
                        part.remove()

    def parts(self) -> Sequence[Part]:
        """Those that were made so far."""
        return self._parts or ()

    # -- which calls ------------------------------------------------------------------------------------------------

    def has_failed(self, kind: Callable[[], Any]) -> bool:
        """Whether a call is of a kind that is not to be tried again."""
        if not self.reasons:
            return False
        if self._unsettled and self._unsettled.get(kind()):
            return False
        return len(self.reasons) >= self._most_kinds or kind() in self.reasons

    def is_like_a_failed_part(self, look: tuple[type[nn.Module], Any]) -> bool:
        """Whether a part of this class changed what calls of this look gave it, and this module is a part as well."""
        return self._is_part and look in self.alike

    def note_success(self, kind: Callable[[], Any]) -> None:
        """Notes that a call of this kind was captured after all."""
        if self._unsettled:
            self.reasons.pop(kind(), None)

    def prepare(self, error: Exception) -> None:
        """Called with why a call is not captured, before it is run.

        A forward that computes gradients of its own sub-modules may differentiate them again, which no graph can.
        """
        if isinstance(error, CaptureError) and error.differentiates and not self._whole:
            self._whole, self._parts = True, None

    def say_around(self, reason: str) -> None:
        """Says once why calls run in PyTorch at this moment: what is active around them."""
        self.say_once(f"calls of {{}} run in PyTorch, not in ORTModule's engine, while {reason}")

    def say_once(self, text: str) -> None:
        """Warns with this text, "{}" in which is the module's class."""
        if text not in self._said and not self._is_part:
            self._said.add(text)
            warnings.warn(text.replace("{}", type(self._module).__name__, 1), stacklevel=8)

    def note(self, kind: Any, error: Exception) -> None:
        """Notes why a kind of call was not captured, and says so the first time."""
        said = self._is_part or bool(self.reasons)
        self.reasons[kind] = str(error)
        if isinstance(error, ChangedValueError) and not self._is_part:
            self._unsettled[kind] = kind not in self._unsettled
        if said:
            return
        name, graphs = type(self._module).__name__, sum(len(list(p.session_reports())) for p in self.parts())
        where = "in PyTorch, not in ORTModule's engine"
        if graphs:
            where = f"partly in PyTorch ({graphs} graphs of its sub-modules run in ORTModule's engine)"
        warnings.warn(f"{name} runs {where}: {error}", stacklevel=8)

"""Who is told of every session that is built: recordings and dumps, which follow a model through its graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import nn

from .. import _C
from .info import PostExportProcessedModelInfo

__all__ = ["BuiltSession", "listen", "tell"]


@dataclasses.dataclass(frozen=True)
class BuiltSession:
    """A session and what it was built for.

    Attributes:
        module: what was captured: the wrapped module or a part of it.
        session: not run yet, where it is told of.
        info: from a call to the graph's inputs and back.
        mode: "training" or "inference".
    """

    module: nn.Module
    session: _C.Session
    info: PostExportProcessedModelInfo
    mode: str


_LISTENERS: list[Callable[[BuiltSession], None]] = []


def listen(listener: Callable[[BuiltSession], None]) -> Callable[[], None]:
    """Has `listener` told of each session that is built from now on, whatever its module; returns what ends that."""
    _LISTENERS.append(listener)

    def end() -> None:
        if listener in _LISTENERS:
            _LISTENERS.remove(listener)

    return end


def tell(built: BuiltSession) -> None:
    """Tells all who listen; on the thread that builds the session."""
    for listener in tuple(_LISTENERS):
        listener(built)

"""Loggers: whether they let a message pass, which a forward may ask them.

Handlers and what is written are no part of a graph: a forward's messages are those of its trace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from .condition import Condition, Watch, shown

__all__ = ["ASKING", "LoggerCondition", "every_logger"]

# Names by which code asks a logger, not only writes to it.
ASKING = frozenset({"isEnabledFor", "getEffectiveLevel"})
_COUNT = ("level", "disabled")


class LoggerCondition(Condition):
    """The same logger, which lets the same pass."""

    kind = "logger"
    __slots__ = ("_logger", "_levels")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._levels = _levels(logger)

    def refusal(self, now: Any) -> str | None:
        if now is not self._logger:
            return f"changed to {shown(now)}"
        return None if _levels(now) == self._levels else "lets other messages pass"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), [
            [(one.name, one.level, one.disabled) for one in _chain(self._logger)],
            self._logger.manager.disable,
        ]

    def watches(self, now: Any) -> Iterator[Watch]:
        for one in _chain(now):
            for name in _COUNT:
                yield "entry", vars(one), name, vars(one)[name]
        yield "entry", vars(now.manager), "_disable", vars(now.manager)["_disable"]


def every_logger() -> list[logging.Logger]:
    """All loggers that there are: code may ask for any by name."""
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(one for one in known if isinstance(one, logging.Logger))]


def _chain(logger: logging.Logger) -> Iterator[logging.Logger]:
    """The logger, and those whose level counts where it has none."""
    one: logging.Logger | None = logger
    while one is not None:
        yield one
        one = None if one.level else one.parent


def _levels(logger: logging.Logger) -> tuple[Any, ...]:
    return tuple((id(one), one.level, one.disabled) for one in _chain(logger)), logger.manager.disable

"""Loggers: whether they let a message pass, which a forward may ask them, and what else it asks by name.

What is written is no part of a graph: a forward's messages are those of its trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from .condition import Before, Change, Condition, Maker, Watch, shown
from .names import NamedEntries, set_entry

__all__ = ["ASKING", "LoggerCondition", "every_logger"]

# Names by which code asks a logger, not only writes to it.
ASKING = frozenset({"isEnabledFor", "getEffectiveLevel"})
_COUNT = ("level", "disabled")
# Attributes that are told otherwise, or that logging keeps for itself; and what a computed name is not about.
_APART = frozenset({*_COUNT, "manager", "root", "_cache"})
_OF_WRITING = _APART | {"handlers", "filters", "parent"}


class LoggerCondition(Condition):
    """The same logger, which lets the same pass and has the same under the names that were looked up."""

    kind = "logger"
    __slots__ = ("_logger", "_levels", "_has_handlers", "_entries")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._levels = _levels(logger)
        self._has_handlers: bool | None = None  # None: nobody has asked
        self._entries = NamedEntries()

    def grow(self, names: frozenset[str], stored: frozenset[str], whole: bool, part: Callable[[Any], Condition]) -> Any:
        """Notes that these were looked up or set, or names that were computed; returns what was found."""
        table = vars(self._logger)
        self._entries.keep(table, stored - _APART)
        if "hasHandlers" in names and self._has_handlers is None:
            self._has_handlers = self._logger.hasHandlers()
        if whole:
            self._entries.ask_all(table, part, _OF_WRITING)
        return self._entries.ask(table, names - _APART, part)

    def refusal(self, now: Any) -> str | None:
        if now is not self._logger:
            return f"changed to {shown(now)}"
        if _levels(now) != self._levels:
            return "lets other messages pass"
        if self._has_handlers is not None and now.hasHandlers() != self._has_handlers:
            return "has got handlers, or has none any more"
        return self._entries.refusal(vars(now))

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        return ((f".{name}", part, value) for name, part, value in self._entries.bound(vars(now)))

    def changed(self, now: Any, before: Before) -> list[Change]:
        return [Change(f".{name}", name, value) for name, value in self._entries.changed(vars(now), before)]

    def set(self, now: Any, name: str, value: Any) -> None:
        set_entry(vars(now), name, value)

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        self._entries.restore(vars(value), original)

    def forget(self) -> None:
        self._entries.forget()

    def stored(self) -> tuple[frozenset[str], Any]:
        names = self._entries.asked | ({"hasHandlers"} if self._has_handlers is not None else frozenset())
        return names, [
            [(one.name, one.level, one.disabled) for one in _chain(self._logger)],
            self._logger.manager.disable,
            self._entries.order is not None,
            self._has_handlers,
        ]

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self.grow(names, frozenset(), bool(further[2]), maker.part)

    def watches(self, now: Any) -> Iterator[Watch]:
        for one in _chain(now):
            for name in _COUNT:
                yield "entry", vars(one), name, vars(one)[name]
        yield "entry", vars(now.manager), "_disable", vars(now.manager)["_disable"]
        if self._has_handlers is not None:
            yield "call", now.hasHandlers, self._has_handlers
        yield from self._entries.watches(vars(now))


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

"""`functools.lru_cache`: what was called before is not called again, and so the cache's content is state.

A forward may fill a cache; what it holds after the trace is what it has to hold before a call that the graph is used
for. CPython tells what a cache holds to its garbage collector only.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

from .condition import Condition, NotStorable, Watch, shown

__all__ = ["CacheCondition"]

_MOST_ENTRIES = 256


class CacheCondition(Condition):
    """A cached function that holds the same results, of a function that is the same."""

    kind = "cache"
    __slots__ = ("_function", "_content")

    def __init__(self, value: Any, part: Callable[[Any], Condition]) -> None:
        self._function = part(value.__wrapped__)
        self._content: tuple[Any, ...] | None = None

    def settle(self, value: Any) -> bool:
        """Takes the content in, at the end of the trace; returns False where there is too much of it."""
        self._content = _content(value)
        return len(self._content) <= 4 * _MOST_ENTRIES

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, functools._lru_cache_wrapper):
            return f"changed from a cached function to {shown(now)}"
        if self._content is None:
            return None
        content = _content(now)
        same = len(content) == len(self._content) and all(a is b for a, b in zip(content, self._content, strict=True))
        return None if same else "(a cached function) remembers other calls"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield "", self._function, now.__wrapped__

    def stored(self) -> tuple[frozenset[str], Any]:
        raise NotStorable("a cached function")

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(_content, now), self._content


def _content(cache: Any) -> tuple[Any, ...]:
    """Keys and results; which was asked for last does not count."""
    others: list[Any] = []
    for held in gc.get_referents(cache):
        if type(held) is dict:  # the first one: keys, and results where the cache has no bound
            unbounded = cache.cache_info().maxsize is None
            return (*held, *(held.values() if unbounded else sorted(others, key=id)))
        if not isinstance(held, type):
            others.append(held)
    return ()

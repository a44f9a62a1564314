"""`functools.lru_cache`: what was called before is not called again, and so the cache's content is state.

A forward may fill a cache; what it holds after the trace is what it has to hold before a call that the graph is used
for, and what a forward reads of the objects that it gives counts as well. CPython tells what a cache holds to its
garbage collector only.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

from .condition import Condition, NotStorable, Watch, shown
from .equality import is_value

__all__ = ["CacheCondition", "cached_in"]

_MOST_ENTRIES = 256


class CacheCondition(Condition):
    """A cached function that holds the same results, of a function that is the same."""

    kind = "cache"
    __slots__ = ("_function", "_content", "_parts")

    def __init__(self, value: Any, part: Callable[[Any], Condition]) -> None:
        self._function = part(value.__wrapped__)
        self._content: tuple[Any, ...] | None = None
        self._parts = _parts_of(cached_in(value), part)

    def settle(self, value: Any, part: Callable[[Any], Condition]) -> bool:
        """Takes the content in, at the end of the trace; returns False where there is too much of it."""
        self._content = cached_in(value)
        self._parts = _parts_of(self._content, part)
        return len(self._content) <= 4 * _MOST_ENTRIES

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, functools._lru_cache_wrapper):
            return f"changed from a cached function to {shown(now)}"
        if self._content is None:
            return None
        content = cached_in(now)
        same = len(content) == len(self._content) and all(a is b for a, b in zip(content, self._content, strict=True))
        return None if same else "(a cached function) remembers other calls"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield "", self._function, now.__wrapped__
        for held, part in self._parts:  # `refusal` has found these very objects there
            yield " (its results)", part, held

    def stored(self) -> tuple[frozenset[str], Any]:
        raise NotStorable("a cached function")

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(cached_in, now), self._content


def _parts_of(content: tuple[Any, ...], part: Callable[[Any], Condition]) -> list[tuple[Any, Condition]]:
    return [(held, part(held)) for held in content if not is_value(held)]


def cached_in(cache: Any) -> tuple[Any, ...]:
    """Keys and results; which was asked for last does not count."""
    others: list[Any] = []
    for held in gc.get_referents(cache):
        if type(held) is dict:  # the first one: keys, and results where the cache has no bound
            unbounded = cache.cache_info().maxsize is None
            return (*held, *(held.values() if unbounded else sorted(others, key=id)))
        if not isinstance(held, type):
            others.append(held)
    return ()

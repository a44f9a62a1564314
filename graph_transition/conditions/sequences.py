"""Containers with a place for each item: lists, tuples, deques, sets; those that derive from one as well.

Items that cannot change are kept as they are; the others are parts. A set is compared in the order in which a loop
meets its items, since that is what a forward can see.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .condition import Condition, Watch, digest, plain_text, shown
from .equality import exactly_equal, is_value

__all__ = ["SEQUENCES", "SequenceCondition", "items_of", "sequence_type"]

SEQUENCES: tuple[type, ...] = (list, tuple, collections.deque, set, frozenset)
_PART = object()  # the place of an item that is a part


def sequence_type(kind: type) -> type | None:
    """Which of SEQUENCES `kind` is or derives from."""
    return next((base for base in SEQUENCES if issubclass(kind, base)), None)


def items_of(value: Any, base: type) -> tuple[Any, ...]:
    """The items, as the base class has them."""
    return tuple(base.__iter__(value))  # type: ignore[attr-defined]


class SequenceCondition(Condition):
    """The items of a container.

    Args:
        value: the container.
        base: which of SEQUENCES it is or derives from.
        part: makes the condition of an item that may change.
    """

    kind = "sequence"
    __slots__ = ("_base", "_exact", "_limit", "_values", "_parts")

    def __init__(self, value: Any, base: type, part: Callable[[Any], Condition]) -> None:
        self._base = base
        self._exact = type(value) is base
        self._limit = _limit(value)
        items = items_of(value, base)
        self._values = tuple(item if is_value(item) else _PART for item in items)
        self._parts = {i: part(item) for i, item in enumerate(items) if self._values[i] is _PART}

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, self._base) or (self._exact and type(now) is not self._base):
            return f"is no {self._base.__name__} any more but {shown(now)}"
        items = items_of(now, self._base)
        if len(items) != len(self._values):
            return f"changed its length from {len(self._values)} to {len(items)}"
        if _limit(now) != self._limit:
            return f"changed its greatest length from {self._limit} to {_limit(now)}"
        for i, (item, was) in enumerate(zip(items, self._values, strict=True)):
            if was is not _PART and not exactly_equal(item, was):
                return f"changed item {i} from {shown(was)} to {shown(item)}"
        return None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        items = items_of(now, self._base) if self._parts else ()
        unordered = self._base in (set, frozenset)  # another process meets the items in another order
        for i, part in self._parts.items():
            yield f"{{{shown(items[i])}}}" if unordered else f"[{i}]", part, items[i]

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        items = [original(self._parts[i]) if v is _PART else v for i, v in enumerate(self._values)]
        if issubclass(self._base, list):
            list.__setitem__(value, slice(None), items)
        elif self._base in (set, collections.deque):
            self._base.clear(value)
            (set.update if self._base is set else collections.deque.extend)(value, items)

    def stored(self) -> tuple[frozenset[str], Any]:
        found = ["" if one is _PART else plain_text(one) for one in self._values]
        if self._base in (set, frozenset):
            found.sort()
        return frozenset(), digest(self._base.__name__, self._exact, self._limit, found)

    def watches(self, now: Any) -> Iterator[Watch]:
        items = items_of(now, self._base)
        if self._base is list:
            yield "list", now, items
        elif self._base is collections.deque:
            yield "call", functools.partial(_limit_and_items, now), (now.maxlen, *items)
        elif self._base is set:
            yield "set", now, items


def _limit_and_items(value: collections.deque[Any]) -> tuple[Any, ...]:
    return (value.maxlen, *items_of(value, collections.deque))


def _limit(value: Any) -> int | None:
    return value.maxlen if isinstance(value, collections.deque) else None

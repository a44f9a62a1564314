"""Dictionaries of every class: what they hold, in which order.

Keys that cannot change are kept as they are; other keys, and values that may change, are parts.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from .condition import Condition, Watch, digest, plain_text, shown
from .equality import exactly_equal, is_value

__all__ = ["MappingCondition", "entries_of", "mapping_type"]

_PART = object()
_MAPPINGS: tuple[type, ...] = (collections.OrderedDict, dict, types.MappingProxyType)


def mapping_type(kind: type) -> type | None:
    """Which dictionary of CPython's `kind` is or derives from."""
    return next((base for base in _MAPPINGS if issubclass(kind, base)), None)


def entries_of(value: Any, base: type) -> tuple[tuple[Any, Any], ...]:
    """(key, value) in order, as the base class has them."""
    return tuple(base.items(value))  # type: ignore[attr-defined]


class MappingCondition(Condition):
    """What a dictionary holds.

    Args:
        value: the dictionary.
        base: which of CPython's it is or derives from.
        part: makes the condition of a key or value that may change.
    """

    kind = "mapping"
    __slots__ = ("_base", "_exact", "_keys", "_values", "_parts", "_factory")

    def __init__(self, value: Any, base: type, part: Callable[[Any], Condition]) -> None:
        self._base = base
        self._exact = type(value) is base
        entries = entries_of(value, base)
        self._keys = tuple(k if is_value(k) else _PART for k, _ in entries)
        self._values = tuple(v if is_value(v) else _PART for _, v in entries)
        self._parts = [
            (i, side, part(entry[side]))
            for i, entry in enumerate(entries)
            for side, kept in ((0, self._keys[i]), (1, self._values[i]))
            if kept is _PART
        ]
        factory = getattr(value, "default_factory", None) if isinstance(value, collections.defaultdict) else None
        self._factory = None if factory is None else part(factory)

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, self._base) or (self._exact and type(now) is not self._base):
            return f"is no {self._base.__name__} any more but {shown(now)}"
        entries = entries_of(now, self._base)
        if len(entries) != len(self._keys):
            return f"changed its length from {len(self._keys)} to {len(entries)}"
        for (key, value), was_key, was in zip(entries, self._keys, self._values, strict=True):
            if was_key is not _PART and not exactly_equal(key, was_key):
                return f"changed a key from {shown(was_key)} to {shown(key)}"
            if was is not _PART and not exactly_equal(value, was):
                return f"changed entry {shown(key)} from {shown(was)} to {shown(value)}"
        if self._factory is not None and getattr(now, "default_factory", None) is None:
            return "has no default_factory any more"
        return None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        entries = entries_of(now, self._base) if self._parts else ()
        for i, side, part in self._parts:
            yield f"[{shown(entries[i][0])}]" if side else f" (key {i})", part, entries[i][side]
        if self._factory is not None:
            yield ".default_factory", self._factory, now.default_factory

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if self._base is types.MappingProxyType:
            return
        parts = {(i, side): original(part) for i, side, part in self._parts}
        ordered = issubclass(self._base, collections.OrderedDict)
        keys = [parts.get((i, 0), key) for i, key in enumerate(self._keys)]
        # Of an OrderedDict, the dict below has an order of its own, that in which the keys came.
        moved = ordered and {id(key) for key in keys} == {id(key) for key in dict.keys(value)}
        if not moved:
            self._base.clear(value)  # type: ignore[attr-defined]
        for i, (key, held) in enumerate(zip(self._keys, self._values, strict=True)):
            self._base.__setitem__(value, parts.get((i, 0), key), parts.get((i, 1), held))  # type: ignore[index]
        if moved:
            for key in keys:
                collections.OrderedDict.move_to_end(value, key)
        if isinstance(value, collections.defaultdict):
            value.default_factory = None if self._factory is None else original(self._factory)

    def stored(self) -> tuple[frozenset[str], Any]:
        found = [[None if one is _PART else plain_text(one) for one in side] for side in (self._keys, self._values)]
        return frozenset(), digest(self._base.__name__, self._exact, found, self._factory is None)

    def watches(self, now: Any) -> Iterator[Watch]:
        entries = entries_of(now, self._base)
        if type(now) is dict:
            yield "dict", now, tuple(k for k, _ in entries), tuple(v for _, v in entries)
        else:
            yield "call", functools.partial(_flat, now, self._base), _flat(now, self._base)
        if self._factory is not None:
            yield "attribute", now, "default_factory", now.default_factory


def _flat(value: Any, base: type) -> tuple[Any, ...]:
    return tuple(x for entry in entries_of(value, base) for x in entry)

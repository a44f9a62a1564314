"""What a traced forward changes of the lists, dicts and objects that it is given: a cache that grows by a token.

A trace is given others, made of the same leaves (CallShape.filled). What it has changed of these, a call of its graph
changes of the caller's own. Not here: what it changes of objects that it reaches otherwise (graph_transition/audit).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch

from ...errors import CaptureError, ChangedValueError
from .nodes import leaves_of
from .plain_objects import attributes_of, is_counter, is_taken_apart

__all__ = ["FoundChange", "GivenContainers"]

_SEQUENCES = (list, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)


@dataclasses.dataclass(frozen=True)
class FoundChange:
    """What a forward has changed of one container.

    Attributes:
        number: the container's, among those that the call is given and that are no tuples.
        removed: keys or attributes that are gone, or whose place in the order is another.
        content: of a list all that it holds now; of a dict or an object what is new there, by key or attribute.
    """

    number: int
    removed: tuple[Hashable, ...]
    content: list[Any] | dict[Any, Any]


class GivenContainers:
    """The containers of a traced call, before its forward.

    Args:
        given: those that the trace is given, as `FlatCall.given` has the caller's.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = [one for one in given if not isinstance(one, tuple)]
        self._numbers = {id(one): number for number, one in reversed(list(enumerate(self._given)))}
        self._before = [_content(one) for one in self._given]

    def number(self, value: Any) -> int | None:
        """The number of a container; None of anything else."""
        return self._numbers.get(id(value))

    def changes(self) -> Iterator[FoundChange]:
        """What the forward has changed.

        Raises:
            ChangedValueError: it has counted, in what is no counter yet.
            CaptureError: it is more than a graph can do again.
        """
        self._refuse_counters()
        for number, (container, before) in enumerate(zip(self._given, self._before, strict=True)):
            now = _content(container)
            if self._numbers[id(container)] != number or _same_content(now, before):
                continue
            if not _can_be_set(container):
                raise CaptureError(
                    f"the forward changes an object of class {type(container).__qualname__} that it is given, whose "
                    "parts torch's pytree alone knows"
                )
            yield FoundChange(number, *_shallow_change(before, now))

    def _refuse_counters(self) -> None:
        """Numbers that are others after the forward are so again after the next, and their graph would be of no use."""
        counters: list[tuple[type, str]] = []
        names: list[str] = []
        for container, before in zip(self._given, self._before, strict=True):
            if isinstance(before, dict):
                now: Any = _content(container)
                found = [key for key in before if key in now and _is_counted(now[key], before[key])]
                apart = is_taken_apart(container)
                whole = {key for key in found if apart and _is_size(before[key])}
                new = [key for key in found if key not in whole or not is_counter(type(container), key)]
                counters += [(type(container), key) for key in new if key in whole]
                names += map(repr, new)
        if names:
            names = list(dict.fromkeys(names))
            text = f"the forward changes the number {', '.join(names)} of an object that it is given, as it may again"
            raise ChangedValueError(text, counters=list(dict.fromkeys(counters)))


def _shallow_change(before: Any, now: Any) -> tuple[tuple[Hashable, ...], Any]:
    """What makes `now` of a container that holds `before`: what to remove first, and what to put there."""
    if isinstance(now, list):
        return (), now
    kept = [key for key in before if key in now]
    removed = tuple(key for key in before if key not in now)
    if list(now)[: len(kept)] != kept:  # others stand in front, or in between
        return tuple(before), now
    return removed, {key: value for key, value in now.items() if key not in before or not _same(value, before[key])}


def _is_counted(now: Any, before: Any) -> bool:
    numbers = (int, float, torch.SymInt, torch.SymFloat)
    return type(before) in numbers and type(now) in numbers and not _same(now, before)


def _is_size(number: Any) -> bool:
    return isinstance(number, torch.SymInt) or (type(number) is int and number >= 0)


def _can_be_set(container: Any) -> bool:
    kind = type(container)
    return kind in _SEQUENCES or kind in _MAPPINGS or is_taken_apart(container)


def _content(container: Any) -> list[Any] | dict[Any, Any]:
    """What a container itself holds; of one of a class that somebody has registered with pytree its leaves."""
    if type(container) in _MAPPINGS:
        return dict(container)
    if type(container) in _SEQUENCES:
        return list(container)
    return attributes_of(container) if is_taken_apart(container) else leaves_of(container)


def _same_content(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return list(now) == list(before) and all(map(_same, now.values(), before.values()))
    return len(now) == len(before) and all(map(_same, now, before))


def _same(now: Any, before: Any) -> bool:
    """Whether nobody can tell the two apart, but for what they hold."""
    plain = type(now) is type(before) and isinstance(now, (bool, int, float, complex, str, bytes))
    return now is before or (plain and repr(now) == repr(before))

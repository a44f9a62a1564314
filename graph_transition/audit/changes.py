"""What a traced forward has changed of what was there before: found at its end, named, and taken back.

A graph repeats what a forward computes. Of what the forward does to Python objects it repeats the simplest: an
attribute or a global that is set to a plain value, a forward hook that is hung up (`Effect`); anything else (a list
that grows) is PyTorch's to run.

Not here: what it sets on its modules without a look at it, which is a result like any other (capture), and writes into
tensors, which are the graph's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from ..conditions import (
    MISSING,
    AddedHooks,
    Change,
    Condition,
    UnknownCondition,
    is_an_object,
    is_value,
    joined,
    spoken,
)
from .reads import Reads

__all__ = ["Effect", "undo_changes"]


@dataclasses.dataclass(frozen=True)
class Effect:
    """A plain value, or hooks, that the forward leaves behind.

    Attributes:
        text: what to call the place.
        condition: of the object that it is set on.
        name, value: what is set, and to what; MISSING where it is removed.
    """

    text: str
    condition: Condition
    name: str
    value: Any


def undo_changes(reads: Reads, apart: Iterable[Any] = ()) -> tuple[list[Effect], dict[str, Any]]:
    """Gives what the forward has changed back what it held; returns what a graph can repeat of it, and of what it
    cannot the names, with the object that was changed. `apart`: objects that may be changed.
    """
    effects: list[Effect] = []
    names: dict[str, Any] = {}
    touched: dict[int, tuple[Condition, Any]] = {}
    for text, condition, value, changes in _taken_back(reads, {id(reads.outer_condition(value)) for value in apart}):
        touched[id(condition)] = condition, value
        for change in changes:
            name = spoken(joined(text, change.name))
            if change.key is not None and _is_repeated(change.value):
                effects.append(Effect(name, condition, change.key, change.value))
            else:
                names.setdefault(name, value)
    # An object and its `__dict__` are one, and each was met at a time of its own: the earlier one knows what it was.
    for condition, _ in reversed(list(reads.met()) if len(touched) > 1 else []):
        if id(condition) in touched:
            condition.restore(touched[id(condition)][1], reads.original)
    return effects, names


def _is_repeated(value: Any) -> bool:
    """Whether a graph can leave it behind at each call: another one of the same value, where it is a plain value."""
    return value is MISSING or isinstance(value, AddedHooks) or (is_value(value) and not is_an_object(value))


def _taken_back(reads: Reads, met: set[int]) -> Iterator[tuple[str, Condition, Any, list[Change]]]:
    """(name, condition, object, changes) of what was there before the forward and was not what it had been.

    Each object is given back what it held before its parts are looked at: what the forward has taken out of it may have
    changed as well. What no root leads to any more comes last. Conditions with identities in `met` are passed over.
    """
    pending: list[tuple[str, Condition, Any]] = []
    for root in (*reads.all_roots(), *reads.outer_objects()):
        pending.append(root)
        while pending:
            text, condition, value = pending.pop()
            if id(condition) in met or condition.is_plain or isinstance(condition, UnknownCondition):
                continue
            met.add(id(condition))
            changes = condition.changed(value, reads)
            if changes:
                yield text, condition, value, changes
                condition.restore(value, reads.original)
            if condition.refusal(value) is None:
                pending.extend(
                    (joined(text, name), part, reads.values.get(id(part), held))
                    for name, part, held in condition.parts(value)
                    if not part.is_plain
                )

"""What an object holds past its attributes: the items of a container, what a wrapper wraps, an exception's arguments;
and the code within code. Not here: which of it a forward reads (reads.py).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..conditions import wrapped_parts
from ..conditions.functions import WRAPPERS
from ..conditions.mappings import entries_of, mapping_type
from ..conditions.objects import held_by
from ..conditions.sequences import items_of, sequence_type

__all__ = ["Contents", "code_inside", "content_of"]


class Contents:
    """What containers held when they were last looked at."""

    def __init__(self) -> None:
        self._held: dict[Any, list[int]] = {}

    def holds_more(self, key: Any, value: Any) -> bool:
        """Whether `value` holds anything else than at the last look under this key, or had none: a method that gives a
        long list may be called for each of its items.
        """
        held = list(map(id, content_of(value)))
        if self._held.get(key) == held:
            return False
        self._held[key] = held
        return True


def content_of(value: Any) -> Iterable[Any]:
    """The items, entries or parts of `value`; nothing of what has none."""
    if isinstance(value, BaseException):
        return [held for _, held in held_by(value)]
    kind = type(value)
    base = mapping_type(kind)
    if base is not None:
        return [x for entry in entries_of(value, base) for x in entry]
    base = sequence_type(kind)
    if base is not None:
        return items_of(value, base)
    return [v for _, v in wrapped_parts(value)] if isinstance(value, tuple(WRAPPERS)) else ()


def code_inside(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of the functions and classes that `code` makes."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from code_inside(constant)

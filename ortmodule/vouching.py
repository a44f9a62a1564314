"""What the user says of functions and objects that a capture cannot see into: they give the same each time.

    @ortmodule.vouch
    def table_of(name): ...            # C code behind it, whose result hangs on its arguments alone

    ortmodule.vouch(tokenizer)         # an object whose state no forward changes, nor anybody between the calls

A forward that calls or reads what is vouched for is captured; what it gave then stands in the graph. Not here: what is
vouched for in one module alone (`Options(vouched=...)`).
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["vouch", "vouched_ids"]

_T = TypeVar("_T")
_VOUCHED: dict[int, Any] = {}  # kept, so that an identity stays theirs


def vouch(value: _T) -> _T:
    """Says that a function gives the same for the same arguments, or that an object stays as it is.

    Args:
        value: a function, a class (then all of its instances), or any object.

    Returns:
        `value`, so that it serves as a decorator.
    """
    _VOUCHED[id(value)] = value
    return value


def vouched_ids(further: tuple[Any, ...]) -> frozenset[int]:
    """The identities of all that is vouched for, in general and by `further`."""
    return frozenset(_VOUCHED) | frozenset(map(id, further))

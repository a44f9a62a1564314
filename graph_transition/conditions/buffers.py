"""Arrays of numbers outside of torch: numpy's, array.array, bytearray. Compared by bytes, and so only short ones."""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from .condition import Condition, Watch, digest

__all__ = ["BUFFERS", "LONGEST_BUFFER", "BufferCondition", "content_of"]

BUFFERS = (numpy.ndarray, array.array, bytearray)
LONGEST_BUFFER = 1 << 14  # bytes; to compare them takes a microsecond


def content_of(value: Any) -> tuple[Any, ...]:
    """Type, form and bytes of a buffer."""
    if isinstance(value, numpy.ndarray):
        return type(value), value.dtype.str, value.shape, value.strides, value.flags.writeable, value.tobytes()
    if isinstance(value, array.array):
        return type(value), value.typecode, value.tobytes()
    return type(value), bytes(value)


class BufferCondition(Condition):
    """A short array of numbers."""

    kind = "buffer"
    __slots__ = ("_content",)

    def __init__(self, value: Any) -> None:
        self._content = content_of(value)

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, BUFFERS):
            return "is no array any more"
        return None if content_of(now) == self._content else "holds other numbers"

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if isinstance(value, numpy.ndarray):
            if value.shape != self._content[2] and value.flags.owndata:
                value.resize(self._content[2], refcheck=False)  # as the forward has: it is known under its name
            if value.shape == self._content[2] and value.flags.writeable:
                value[...] = numpy.frombuffer(self._content[-1], value.dtype).reshape(value.shape)
        elif isinstance(value, array.array):
            del value[:]
            value.frombytes(self._content[-1])
        else:
            value[:] = self._content[-1]

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), digest(self._content[0].__qualname__, *self._content[1:])

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "call", functools.partial(content_of, now), self._content

"""Values that never change, and when two of them are the same.

The same means that no program can tell the two apart: of the same type, zeros of the same sign, NaNs of the same bits.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import struct
import types
import uuid
from typing import Any

import numpy
import torch

__all__ = ["exactly_equal", "is_an_object", "is_another", "is_value"]

_COMPARED = (
    bool, int, str, bytes, type(None), type(...), type(NotImplemented), fractions.Fraction, uuid.UUID, range,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, re.Pattern,
    torch.dtype, torch.device, torch.layout, torch.memory_format, types.GenericAlias, types.UnionType, pathlib.PurePath,
    pathlib.PosixPath, pathlib.PurePosixPath,
)  # fmt: skip
_VALUES = frozenset({*_COMPARED, float, complex, decimal.Decimal, slice, torch.Size})


_MADE = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, frozenset, uuid.UUID,
         pathlib.PurePath, slice)  # fmt: skip


def is_value(value: Any) -> bool:
    """Whether a value is compared by what it is, and cannot change."""
    kind = type(value)
    if kind in _VALUES or isinstance(value, (numpy.generic, numpy.dtype)):
        return True
    return kind in (tuple, frozenset) and len(value) <= 64 and all(map(is_value, value))


def exactly_equal(a: Any, b: Any) -> bool:
    """Whether no program can tell the two values apart but by identity."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if kind is complex:
        return struct.pack("dd", a.real, a.imag) == struct.pack("dd", b.real, b.imag)
    if kind is decimal.Decimal:
        return bool(a.as_tuple() == b.as_tuple())
    if kind is slice:
        return all(map(exactly_equal, (a.start, a.stop, a.step), (b.start, b.stop, b.step)))
    if kind is tuple:
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if kind is frozenset:  # in the order in which a loop meets them
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if isinstance(a, numpy.generic):
        return bool(a.dtype == b.dtype) and a.tobytes() == b.tobytes()
    if kind is datetime.datetime or kind is datetime.time:
        return bool(a == b) and a.tzinfo == b.tzinfo and a.fold == b.fold
    return kind in _COMPARED_SET and bool(a == b)


def is_another(now: Any, was: Any) -> bool:
    """Whether a place that held `was` was given something else. An equal frozenset or slice is: what a program makes is
    an object of its own. Equal numbers, texts and tuples are not: whether two are one object is up to Python.
    """
    return now is not was and (is_an_object(now) or not exactly_equal(now, was))


def is_an_object(value: Any) -> bool:
    """Whether a value is one that a program makes, and may hold elsewhere: what a forward sets is that very one."""
    return isinstance(value, _MADE) or (isinstance(value, tuple) and any(map(is_an_object, value)))


_COMPARED_SET = frozenset({*_COMPARED, torch.Size})

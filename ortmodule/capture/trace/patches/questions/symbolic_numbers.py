"""What the user's code asks of a symbolic size and torch's arithmetic does not answer: its text, and whether it equals
a number of a class that torch does not know (of an enum, say). Either fixes the size.

Not here: which class it says that it is of (classes.py), sizes of 1 (sizes/unit_sizes.py).
"""

from __future__ import annotations

import numbers
from typing import Any

import torch

from ...patching import FORWARD, Patch, caller
from ...tracing import TraceState
from .classes import NUMBERS, is_users

__all__ = ["PATCHES"]

_KNOWN = (int, float, bool, *NUMBERS)  # to torch


def _number(symbolic: Any) -> Any:
    return NUMBERS[type(symbolic)](symbolic)


def _text(original: Any, state: TraceState) -> Any:
    def text(self: Any, *args: Any) -> Any:
        if is_users(caller()):
            return getattr(_number(self), original.__name__)(*args)
        return original(self, *args)

    return text


def _equality(original: Any, state: TraceState) -> Any:
    def compare(self: Any, other: Any) -> Any:
        if type(other) not in _KNOWN and isinstance(other, numbers.Number) and not isinstance(other, torch.Tensor):
            return getattr(_number(self), original.__name__)(other)
        return original(self, other)

    return compare


PATCHES = (
    *(Patch(kind, name, _text, during=FORWARD) for kind in NUMBERS for name in ("__repr__", "__str__", "__format__")),
    *(Patch(kind, name, _equality, during=FORWARD) for kind in NUMBERS for name in ("__eq__", "__ne__")),
)

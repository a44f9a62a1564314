"""Conditions of values that never change: numbers, strings, dtypes. Compared exactly (equality.py)."""

from __future__ import annotations

from typing import Any

from .condition import Condition, digest, shown
from .equality import exactly_equal

__all__ = ["DERIVED", "DerivedValueCondition", "ValueCondition"]


class ValueCondition(Condition):
    """A value that cannot change."""

    kind = "value"
    of_object = False
    is_plain = True
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def refusal(self, now: Any) -> str | None:
        if now is self.value or exactly_equal(now, self.value):
            return None
        return f"changed from {shown(self.value)} to {shown(now)}"


# Numbers and strings that classes may derive from, and how to get at the plain value without the class's own methods.
DERIVED: dict[type, Any] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
    complex: lambda value: complex(complex.real.__get__(value), complex.imag.__get__(value)),
}


class DerivedValueCondition(Condition):
    """The number or string that an object of a derived class is."""

    kind = "derived value"
    __slots__ = ("_plain", "_value")

    def __init__(self, value: Any, base: type) -> None:
        self._plain = DERIVED[base]
        self._value = self._plain(value)

    def refusal(self, now: Any) -> str | None:
        plain = self._plain(now)
        if exactly_equal(plain, self._value):
            return None
        return f"changed from {shown(self._value)} to {shown(plain)}"

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), digest(self._value)

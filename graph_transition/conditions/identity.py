"""Objects that count as what they are: C functions, descriptors, locks, what torch and numpy make for themselves."""

from __future__ import annotations

from typing import Any

from .condition import Condition, NotStorable, shown

__all__ = ["IdentityCondition", "UnknownCondition"]


class IdentityCondition(Condition):
    """The very same object."""

    kind = "identity"
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def refusal(self, now: Any) -> str | None:
        return None if now is self.value else f"changed from {shown(self.value)} to {shown(now)}"


class UnknownCondition(Condition):
    """Something that can neither be watched nor compared: no graph holds for it.

    Args:
        what: what it is, in words.
    """

    kind = "unknown"
    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def stored(self) -> tuple[frozenset[str], Any]:
        raise NotStorable(self.what)

    def refusal(self, now: Any) -> str | None:
        return f"is {self.what}, which cannot be watched"

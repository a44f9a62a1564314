"""Objects that count as what they are: C functions, descriptors, locks, what torch and numpy make for themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .condition import Condition, NotStorable, Watch, shown

__all__ = ["IdentityCondition", "LockCondition", "UnknownCondition"]


class IdentityCondition(Condition):
    """The very same object."""

    kind = "identity"
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def refusal(self, now: Any) -> str | None:
        return None if now is self.value else f"changed from {shown(self.value)} to {shown(now)}"

    def stored(self) -> tuple[frozenset[str], Any]:
        name = getattr(self.value, "__qualname__", None)
        return frozenset(), [type(self.value).__qualname__, name if isinstance(name, str) else None]


class LockCondition(IdentityCondition):
    """The very same lock; where the forward may ask whether it is held, held or not as it was."""

    kind = "lock"
    __slots__ = ("_text",)
    ASKING = frozenset({"locked", "acquire", "_is_owned"})

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._text: str | None = None

    def ask(self, now: Any) -> None:
        """Notes that the forward may ask."""
        self._text = self._text or repr(now)  # of a reentrant lock, nothing else tells

    def refusal(self, now: Any) -> str | None:
        why = super().refusal(now)
        return why or (None if self._text in (None, repr(now)) else "(a lock) was taken or given back")

    def stored(self) -> tuple[frozenset[str], Any]:
        if self._text is not None:
            raise NotStorable("a lock that is asked whether it is held")
        return super().stored()

    def watches(self, now: Any) -> Iterator[Watch]:
        if self._text is not None:
            yield "call", now.__repr__, self._text


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

"""Which values a recording or a dump is about: globs over names and operators."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from .errors import InvalidArgumentError, nearest

__all__ = ["Choice", "globs"]


def globs(where: str, value: Any) -> tuple[str, ...]:
    """Globs of an argument: a list of texts, or one text with commas between.

    Args:
        where: how errors name the argument.
        value: the argument.

    Raises:
        InvalidArgumentError: anything else, or an empty glob.
    """
    parts = value.split(",") if isinstance(value, str) and value else value or ()
    if not isinstance(parts, list | tuple | set | frozenset):
        raise InvalidArgumentError(f"{where} should be globs such as 'encoder.*', got {value!r}")
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise InvalidArgumentError(f"{where} should be globs such as 'encoder.*', got {part!r} in {value!r}")
    return tuple(part.strip() for part in parts)


class Choice:
    """Globs over the names of values and nodes, and over operators; remembers which of them have fitted.

    Args:
        names: of which one has to fit the name of a value, or of the node that makes it; none: every name does.
        operators: the same for operators, with their domain ("com.microsoft::Gelu") or without.
    """

    def __init__(self, names: Any = (), operators: Any = ()) -> None:
        self._names, self._operators = globs("names", names), globs("operators", operators)
        self._idle = {*self._names, *self._operators}
        self._seen: dict[str, None] = {}

    def takes(self, values: Sequence[str], node: str = "", operator: str = "") -> bool:
        """Whether this node with these values, or a value that no node makes (of which operators say nothing), is
        one of them.
        """
        if not self._names and not self._operators:
            return True
        names = [*values, node] if node else list(values)
        operators = [operator, operator.rpartition("::")[2]] if operator else []
        if self._idle:
            self._seen.update(dict.fromkeys((*names, *operators)))
        by_name = self._fits(self._names, names)
        return by_name and (not operators or self._fits(self._operators, operators))

    def _fits(self, patterns: tuple[str, ...], texts: Sequence[str]) -> bool:
        fitting = [p for p in patterns if any(fnmatchcase(text, p) for text in texts)]
        self._idle.difference_update(fitting)
        return bool(fitting) or not patterns

    def idle(self) -> str:
        """What to say of the globs that have fitted nothing; "" where all have, or nothing has run."""
        if not self._seen:
            return ""
        return "; ".join(f"nothing fits {glob!r}{nearest(glob, self._seen)}" for glob in sorted(self._idle))

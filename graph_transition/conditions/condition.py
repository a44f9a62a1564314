"""What a graph depends on: `Condition`, and the walk that tells whether a set of them holds.

A condition says of one object what was read of it. Its parts are conditions of their own, on the objects that it leads
to; they are reached anew at each check, so that an equal object in another's place is as good as the first. One kind of
condition is one class in a file of this folder. It says
- `refusal`: why an object is not what was read,
- `parts`: what to look at next, and under which name,
- `watches`: what the native check of a steady call compares,
- `stored`, `look_up`: where it has looked, for the cache on disk.

Not here: which objects a forward reads (../audit), the conditions of a whole graph (captured_graph.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from .equality import is_another

__all__ = [
    "MISSING",
    "Argument",
    "Before",
    "Change",
    "Check",
    "Condition",
    "Maker",
    "NotStorable",
    "Refusal",
    "Roots",
    "Watch",
    "digest",
    "joined",
    "ordered",
    "plain_text",
    "reachable",
    "shown",
    "spoken",
]


class _Missing:
    """Stands for a value that is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
# What the native check compares, by kind: see csrc/bindings/watching/watches.h.
Watch = tuple[Any, ...]
_LONGEST_TEXT = 80


class NotStorable(Exception):
    """Something has no plain form; the text says what."""


def plain_text(value: Any) -> str:
    """A plain value as text that another process makes of the same: sets have another order there."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(plain_text, value)))}}}"
    if type(value) in (tuple, list):
        return f"({', '.join(map(plain_text, value))})"
    return repr(value)


def digest(*values: Any) -> str:
    """What stands for plain values in a file."""
    return hashlib.sha256(plain_text(values).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def ordered(names: Iterable[str] | None) -> list[str] | None:
    """Names in an order that counts, where one does."""
    return None if names is None else list(names)


@dataclasses.dataclass(frozen=True)
class Change:
    """What a forward has changed: of what name (see `joined`), under which key where there is one, and to what."""

    name: str
    key: str | None
    value: Any


class Maker(Protocol):
    """Makes the conditions of parts (audit.Reads)."""

    vouched: frozenset[int]
    tree: frozenset[int]

    def part(self, value: Any) -> Condition: ...
    def keep(self, value: Any, condition: Condition) -> None: ...
    def namespace(self, text: str, table: dict[str, Any]) -> Any: ...


class Before(Protocol):
    """What there was before the forward that is traced."""

    def original(self, part: Condition) -> Any:
        """The object that a condition was made of."""

    def own(self, value: Any) -> Any:
        """What the user knows, where the trace has put something in its place."""

    def outer_condition(self, value: Any) -> Condition | None:
        """The condition of an object that was there and may change; None for anything else."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """Stands, where conditions begin, for an argument: the index among the call's flat leaves."""

    index: int


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a graph does not hold for a call.

    Attributes:
        reason: a sentence.
        value: what the Python value is called that is another one.
        given: whether that is a container that the call is given.
    """

    reason: str
    value: str | None = None
    given: bool = False


class Condition:
    """What was read of one object."""

    kind: ClassVar[str]  # names the class in the cache on disk
    of_object: ClassVar[bool] = True  # two of its kind are of two objects, which a forward may compare by `is`
    is_plain: ClassVar[bool] = False  # leads to nothing, has no watch, and cannot change: `refusal` says all of it
    __slots__ = ("__weakref__",)

    def refusal(self, now: Any) -> str | None:
        """Why `now` is not what was read, as "changed from 1 to 2"; None where it is, its parts apart."""
        raise NotImplementedError

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        """(name, condition, object) of what `now` leads to. `refusal` has found all of them there; see `joined`."""
        return iter(())

    def watches(self, now: Any) -> Iterator[Watch]:
        """What tells natively that `now`, its parts apart, is what it is at this moment."""
        return iter(())

    def changed(self, now: Any, before: Before) -> list[Change]:
        """What a traced forward has changed of `now`."""
        if self.refusal(now) is not None:
            return [Change("", None, now)]
        changes = []
        for name, part, held in self.parts(now):
            held, was = before.own(held), before.original(part)
            if is_another(held, was):
                changes.append(Change(name, None, held))
        return changes

    def set(self, now: Any, name: str, value: Any) -> None:
        """Sets what a change has named, or removes it where `value` is MISSING."""
        raise NotImplementedError

    def settle(self, now: Any, part: Callable[[Any], Condition]) -> str | None:
        """Takes in what could not be looked at during the trace, at its end.

        Returns:
            What no graph of the trace can be kept because of, or None.
        """
        return None

    def forget(self) -> None:
        """Called when the trace is over and `restore` is not needed any more."""

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        """Makes `value`, which a traced forward has changed, what was read; `original` gives a part's object."""

    def stored(self) -> tuple[frozenset[str], Any]:
        """The names that were looked up, and plain data of what else was asked and, but for parts, found: where another
        process finds something else, its condition says something else.

        Raises:
            NotStorable: there is none. A class that says nothing of it is not stored.
        """
        raise NotStorable(f"a {self.kind}")

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        """Asks `now` for the same, in another process."""


# (text, condition, object or Argument) of what a forward's reads are reached from.
Roots = Sequence[tuple[str, Condition, Any]]


def shown(value: Any) -> str:
    """A value in an error message."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of class {type(value).__qualname__}"
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 4]} ..."


def joined(text: str, name: str) -> str:
    """What a part is called; a name that begins with "=" says it whole."""
    return name[1:] if name.startswith("=") else text + name


def spoken(text: str) -> str:
    """The same in a sentence: "the attribute config.alpha"."""
    return f"the attribute {text[1:]}" if text.startswith(".") else text or "the module"


def reachable(
    roots: Iterable[tuple[str, Condition, Any]], met: set[int], objects: Mapping[int, Any]
) -> Iterator[tuple[str, Condition, Any]]:
    """(text, condition, object) of all that roots lead to, each condition once, and of plain ones the roots alone.

    Args:
        roots: the same of where to begin.
        met: identities of conditions that are passed over; those that are given are there afterwards.
        objects: by a condition's identity, the object it is of, where it is another than the roots lead to.
    """
    pending = list(roots)
    while pending:
        text, condition, value = pending.pop()
        if id(condition) in met:
            continue
        met.add(id(condition))
        yield text, condition, value
        if condition.refusal(value) is None:
            pending.extend(
                (joined(text, name), inner, objects.get(id(inner), held))
                for name, inner, held in condition.parts(value)
                if not inner.is_plain
            )


class Check:
    """Compares objects with conditions; each condition once, and always with the same object, two with two.

    Args:
        given: the containers that a call is given, for none of which a condition holds.

    Attributes:
        bound: (condition, the object that it holds for), of all that was met but plain parts.
    """

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.bound: list[tuple[Condition, Any]] = []
        self._met: dict[int, Any] = {}
        self._given = frozenset(map(id, given))
        self._conditions: dict[tuple[int, type], Condition] = {}  # by identities of objects that `bound` keeps alive

    def refusal(self, roots: Iterable[tuple[str, Condition, Any]]) -> Refusal | None:
        """Why the first condition that does not hold does not; None where all hold."""
        pending = deque(roots)
        while pending:
            text, condition, now = pending.popleft()
            known = self._met.get(id(condition), MISSING)
            if known is not MISSING:
                if known is not now:
                    return Refusal(f"{spoken(text)} is another object than it was", spoken(text))
                continue
            self._met[id(condition)] = now
            self.bound.append((condition, now))
            if id(now) in self._given:
                place = spoken(text)
                return Refusal(f"{place} is an object that the call is given", place, given=True)
            key = (id(now), type(condition))
            if condition.of_object and self._conditions.setdefault(key, condition) is not condition:
                return Refusal(f"{spoken(text)} is the same object as another now", spoken(text))
            why = condition.refusal(now)
            if why is not None:
                return Refusal(f"{spoken(text)} {why}", spoken(text))
            for name, part, value in condition.parts(now):
                if not part.is_plain:
                    pending.append((joined(text, name), part, value))
                elif (why := part.refusal(value)) is not None:
                    place = spoken(joined(text, name))
                    return Refusal(f"{place} {why}", place)
        return None

    def watches(self) -> Iterator[Watch]:
        """What the native check compares for all that was met."""
        asked: set[Any] = set()
        for condition, now in self.bound:
            for watch in condition.watches(now):
                if watch[0] == "call" and type(watch[1]) is types.BuiltinFunctionType:
                    if id(watch[1]) in asked:
                        continue
                    asked.add(id(watch[1]))
                yield watch

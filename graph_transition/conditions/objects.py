"""Objects of classes written in Python: attributes that were looked up by name, and, where the class derives from a
container, a number or an exception, what that holds. Not here: torch's modules (modules.py).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .condition import MISSING, Before, Change, Condition, Maker, Watch, ordered, shown
from .equality import is_another
from .names import NamedEntries, set_entry
from .origin import notes_of

__all__ = ["ExceptionCondition", "ObjectCondition", "held_by", "instance_table", "slots_of"]

# Where an exception was raised, and while which other was handled, does not count.
_OF_RAISING = frozenset({"__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__", "__class__"})


def instance_table(value: Any) -> Mapping[str, Any] | None:
    """The object's own `__dict__`, whatever its class says of attributes."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return table if isinstance(table, dict) else None


class ObjectCondition(Condition):
    """An object of the same class, with the same in the attributes that were looked up.

    Args:
        kind_of: condition of the class.
        content: condition of what it holds as a container or number; None for a plain object.
    """

    kind = "object"
    __slots__ = ("_type", "_class", "_content", "entries", "_slots", "_slot_names")

    def __init__(self, value: Any, kind_of: Condition, content: Condition | None) -> None:
        self._type = type(value)
        self._class = kind_of
        self._content = content
        self.entries = NamedEntries()
        self._slots: dict[str, Condition | None] = {}
        self._slot_names = _slot_names(type(value))

    def keep(self, value: Any, names: frozenset[str]) -> None:
        """Notes that the forward may set attributes of these names."""
        table = self._table(value)
        if table is not None:
            self.entries.keep(table, names - notes_of(self._type))

    def set_inside(self, value: Any, before: Before) -> set[int]:
        """Identities of what the traced forward has set as attributes."""
        return self.entries.set_inside(self._table(value) or {}, before)

    def changed(self, now: Any, before: Before) -> list[Change]:
        if type(now) is not self._type:
            return [Change("", None, now)]
        table = self._table(now)
        found = self.entries.changed(table, before) if table is not None else []
        for name, part in self._slots.items():
            held, was = before.own(_slot(now, name)), MISSING if part is None else before.original(part)
            if is_another(held, was):
                found.append((name, held))
        changes = [Change(f".{name}", name, value) for name, value in found]
        content = self._content is not None and self._content.changed(now, before)
        return changes + ([Change("", None, now)] if content else [])

    def set(self, now: Any, name: str, value: Any) -> None:
        table = instance_table(now)
        if name in self._slots and value is MISSING:
            object.__delattr__(now, name)
        elif name in self._slots:
            object.__setattr__(now, name, value)
        else:
            set_entry(table, name, value)

    def settle(self, now: Any, part: Callable[[Any], Condition]) -> str | None:
        table = self._table(now)
        if table is not None:
            self.entries.settle(table, part)
        return None

    def forget(self) -> None:
        self.entries.forget()

    def grow(
        self, value: Any, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]
    ) -> list[tuple[str, Any]]:
        """Notes a look at attributes; returns (name, value) of what was found."""
        found: list[tuple[str, Any]] = []
        table = self._table(value)
        names -= notes_of(self._type)
        if table is not None:
            if whole:
                self.entries.ask_all(table, part)
            self.entries.ask(table, names, part)
            found += [(n, v) for n, v in table.items() if whole or n in names]
        for name in self._slot_names:
            if whole or name in names:
                held = _slot(value, name)
                if name not in self._slots:
                    self._slots[name] = None if held is MISSING else part(held)
                if held is not MISSING:
                    found.append((name, held))
        return found

    def _table(self, value: Any) -> Mapping[str, Any] | None:
        """The object's attributes, as far as the condition is about them."""
        return instance_table(value)

    def refusal(self, now: Any) -> str | None:
        if type(now) is not self._type:
            return f"changed from an object of class {self._type.__qualname__} to {shown(now)}"
        for name, part in self._slots.items():
            if (part is None) != (_slot(now, name) is MISSING):
                return f"changed its attribute '{name}'"
        table = self._table(now)
        return self.entries.refusal(table) if table is not None else None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield "", self._class, type(now)
        table = instance_table(now)
        if table is not None:
            for name, part, value in self.entries.bound(table):
                yield f".{name}", part, value
        for name, slot in self._slots.items():
            if slot is not None:
                yield f".{name}", slot, _slot(now, name)
        if self._content is not None:
            yield "", self._content, now

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        if type(value) is not self._type:
            object.__setattr__(value, "__class__", self._type)
        table = instance_table(value)
        if table is not None:
            self.entries.restore(table, original, self._table(value))
        for name, part in self._slots.items():
            held = _slot(value, name)
            if part is not None and held is not original(part):
                object.__setattr__(value, name, original(part))
            elif part is None and held is not MISSING:
                object.__delattr__(value, name)
        if self._content is not None:
            self._content.restore(value, original)

    def stored(self) -> tuple[frozenset[str], Any]:
        return self.entries.asked | frozenset(self._slots), ordered(self.entries.order)

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self.grow(now, names, further is not None, maker.part)

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "type", now, self._type
        table = instance_table(now)
        if table is not None:
            yield from self.entries.watches(table)
        for name, part in self._slots.items():
            yield "attribute", now, name, MISSING if part is None else _slot(now, name)


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """(name, content) of the slots that classes in Python give it, those that nothing is in apart."""
    found = [(name, _slot(value, name)) for name in _slot_names(type(value))]
    return [(name, held) for name, held in found if held is not MISSING and name != "__dict__"]


def _slot_names(kind: type) -> list[str]:
    return [
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and name != "__doc__"  # a property's, which has two
    ]


def _slot(value: Any, name: str) -> Any:
    for base in type(value).__mro__:
        member = vars(base).get(name)
        if isinstance(member, types.MemberDescriptorType):
            try:
                return member.__get__(value)
            except AttributeError:
                return MISSING
    return MISSING


def held_by(value: BaseException) -> list[tuple[str, Any]]:
    """(name, what is there) of what the exception's classes in C hold."""
    names = dict.fromkeys(
        name
        for base in type(value).__mro__
        for name, member in vars(base).items()
        if isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)) and name not in _OF_RAISING
    )
    found = [(name, getattr(value, name, MISSING)) for name in names]
    return [(name, held) for name, held in found if held is not MISSING]


class ExceptionCondition(Condition):
    """An exception whose classes in C hold the same: arguments and the rest (`errno`, `value`)."""

    kind = "exception"
    __slots__ = ("_parts",)

    def __init__(self, value: BaseException, part: Callable[[Any], Condition]) -> None:
        self._parts = {name: part(held) for name, held in held_by(value)}

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, BaseException):
            return f"changed to {shown(now)}"
        return None if [name for name, _ in held_by(now)] == list(self._parts) else "(an exception) holds other things"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        held = dict(held_by(now))
        for name, part in self._parts.items():
            yield f".{name}", part, held[name]

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), list(self._parts)

    def watches(self, now: Any) -> Iterator[Watch]:
        for name, held in held_by(now):
            yield "attribute", now, name, held

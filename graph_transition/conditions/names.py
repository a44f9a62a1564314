"""What was looked up by name in a dictionary of names: an object's attributes, a Python module's globals.

A name that was not there is as much of a condition as one that was.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .classes import found_on
from .condition import MISSING, Before, Change, Condition, Maker, Watch, digest, ordered, shown
from .equality import exactly_equal, is_another, is_value

__all__ = ["OF_IMPORT", "NamedEntries", "NamespaceCondition", "PythonModuleCondition", "set_entry"]


_OF_PYTHON = frozenset({"__warningregistry__"})  # what it keeps among the globals of a module
# What it puts there at an import, which a look by a computed name is not about.
OF_IMPORT = frozenset({"__builtins__", "__cached__", "__loader__", "__path__", "__spec__"})


class NamedEntries:
    """The entries of a table that were asked for.

    Attributes:
        parts: name -> condition of what was found.
        asked: every name that was asked for.
        order: all names of the table, where it was taken whole, but those that are `apart`.
        before: name -> what was there, of names that the forward only sets; until the trace is over.
        whole: names of the table when it was taken whole, by a forward that may set any; until the trace is over.
        same: names that the forward may have set to what was there; until the trace is over.
        results: names that the forward has set before it looked at them.
    """

    __slots__ = ("parts", "asked", "order", "apart", "before", "whole", "same", "results")

    def __init__(self) -> None:
        self.parts: dict[str, Condition] = {}
        self.asked: frozenset[str] = frozenset()
        self.order: tuple[str, ...] | None = None
        self.apart = _OF_PYTHON
        self.before: dict[str, Any] = {}
        self.whole: frozenset[str] | None = None
        self.same: frozenset[str] = frozenset()
        self.results: frozenset[str] = frozenset()

    def settle(self, table: Mapping[str, Any], part: Callable[[Any], Condition]) -> None:
        """Makes what the forward may have set to what was there a condition: where it is another, a call sets it."""
        self.ask(table, self.same - self.results, part)

    def forget(self) -> None:
        """Called when the trace is over."""
        self.before.clear()
        self.same = frozenset()
        self.whole = None

    def keep(self, table: Mapping[str, Any], names: frozenset[str]) -> None:
        """Notes that the forward may set `names`, without a look at them."""
        for name in names:
            if name not in self.before and name not in self.asked:
                self.before[name] = table.get(name, MISSING)

    def set_inside(self, table: Mapping[str, Any], before: Before) -> set[int]:
        """Identities of what the traced forward has put there."""
        found = [(table.get(name), was) for name, was in self.before.items()]
        found += [(table.get(name), before.original(part)) for name, part in self.parts.items()]
        return {id(own) for now, was in found if (own := before.own(now)) is not was}

    def changed(self, table: Mapping[str, Any], before: Before) -> list[tuple[str, Any]]:
        """(name, what is there now or MISSING) of all that is not what it was before the forward."""
        found = []
        for name, part in self.parts.items():
            now, was = before.own(table.get(name, MISSING)), before.original(part)
            if is_another(now, was):
                found.append((name, now))
        found += [(name, table[name]) for name in table.keys() & self.asked if name not in self.parts]
        same = []
        for name, was in self.before.items():
            now, was = before.own(table.get(name, MISSING)), before.own(was)
            if name in self.asked:
                continue
            if is_another(now, was):
                found.append((name, now))
            elif now is not MISSING:
                same.append(name)
        self.same = frozenset(same)
        found += [(name, table[name]) for name in self._added(table)]
        return found

    def _added(self, table: Mapping[str, Any]) -> list[str]:
        """Names that nobody has spelled out and that have come since the table was taken whole."""
        if self.whole is None:
            return []
        known = self.whole | self.asked | self.before.keys() | _OF_PYTHON
        return [name for name in table if name not in known]

    def forget_results(self, names: frozenset[str]) -> None:
        """Notes that the forward has set these itself before it looked at them."""
        self.asked -= names
        self.results |= names
        for name in names:
            self.parts.pop(name, None)

    def ask(self, table: Mapping[str, Any], names: frozenset[str], part: Callable[[Any], Condition]) -> list[Any]:
        """Notes that `names` were looked up; returns what was found."""
        found = []
        names = names - _OF_PYTHON if not _OF_PYTHON.isdisjoint(names) else names
        for name in table.keys() & names if len(names) < len(table) else [n for n in table if n in names]:
            value = table[name]
            if name not in self.parts and name not in self.asked:
                was = self.before.get(name, value)
                if was is not MISSING:
                    self.parts[name] = part(was)
            found.append(value)
        self.asked = names if self.asked <= names else self.asked | names
        return found

    def ask_all(
        self, table: Mapping[str, Any], part: Callable[[Any], Condition], apart: frozenset[str] = _OF_PYTHON
    ) -> list[Any]:
        """Notes that everything in the table was looked up, and that there was no more; but of names `apart`."""
        found = self.ask(table, frozenset(table.keys() - apart), part)
        if self.order is None:
            self.apart = apart | _OF_PYTHON
            self.order = self._in_order(table)
        self.keep_whole(table)
        return found

    def _in_order(self, table: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(name for name in table if name not in self.apart)

    def keep_whole(self, table: Mapping[str, Any]) -> None:
        """Notes that the forward may set any name."""
        if self.whole is None:
            self.whole = frozenset(table)

    def refusal(self, table: Mapping[str, Any]) -> str | None:
        for name in self.parts:
            if name not in table:
                return f"has no '{name}' any more"
        for name in table.keys() & self.asked:
            if name not in self.parts:
                return f"has got a '{name}'"
        if self.order is not None and self._in_order(table) != self.order:
            return "has other entries, or in another order"
        return None

    def bound(self, table: Mapping[str, Any]) -> Iterator[tuple[str, Condition, Any]]:
        for name, part in self.parts.items():
            yield name, part, table[name]

    def restore(self, table: Any, original: Callable[[Condition], Any], shown: Mapping[str, Any] | None = None) -> None:
        """Gives the table back what it held; `shown`: what of it the condition is about."""
        there = table if shown is None else shown
        for name in self._added(there):
            del table[name]
        for name, was in self.before.items():
            if name not in self.asked and table.get(name, MISSING) is not was:
                set_entry(table, name, was)
        for name in (there.keys() & table.keys() & self.asked) - self.parts.keys():
            del table[name]
        for name, part in self.parts.items():
            if name not in table or table[name] is not original(part):
                table[name] = original(part)
        order = self.order or ()
        names = () if self.order is None else self._in_order(table)
        if names != order and sorted(names) == sorted(order):
            for name in order:
                table[name] = table.pop(name)

    def watches(self, table: Any) -> Iterator[Watch]:
        if type(table) is not dict:
            return
        for name in self.parts:
            yield "entry", table, name, table[name]
        if self.order is not None:
            names = self.asked | frozenset(self.order)  # of the former some may be there, and apart
            yield "names", table, names, len(table.keys() & names), len(table)
        elif len(self.asked) > len(self.parts):
            yield "names", table, self.asked, len(self.parts), -1


def set_entry(table: Any, name: str, value: Any) -> None:
    """Sets an entry, or removes it where `value` is MISSING."""
    if value is MISSING:
        table.pop(name, None)
    else:
        table[name] = value


class NamespaceCondition(Condition):
    """Globals of a Python module, or builtins.

    Args:
        text: what its entries are called, as "the global ".
    """

    kind = "namespace"
    __slots__ = ("text", "entries")

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries = NamedEntries()

    def refusal(self, now: Any) -> str | None:
        why = self.entries.refusal(now)
        return None if why is None else f"({self.text.strip()}) {why}"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        return ((f"={self.text}{name}", part, value) for name, part, value in self.entries.bound(now))

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        self.entries.restore(value, original)

    def stored(self) -> tuple[frozenset[str], Any]:
        apart = None if self.entries.order is None else sorted(self.entries.apart)
        return self.entries.asked, [self.text, apart, ordered(self.entries.order)]

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self.text = further[0]  # by which way it was met first
        self.grow(now, names, maker.part)
        if further[1] is not None:
            self.entries.ask_all(now, maker.part, frozenset(further[1]))

    def watches(self, now: Any) -> Iterator[Watch]:
        return self.entries.watches(now)

    def grow(self, now: Any, names: Iterable[str], part: Callable[[Any], Condition]) -> list[Any]:
        """Notes that `names` were looked up; returns what was found."""
        return self.entries.ask(now, frozenset(names), part)

    def changed(self, now: Any, before: Before) -> list[Change]:
        return [Change(f"={self.text}{name}", name, value) for name, value in self.entries.changed(now, before)]

    def set(self, now: Any, name: str, value: Any) -> None:
        set_entry(now, name, value)

    def settle(self, now: Any, part: Callable[[Any], Condition]) -> str | None:
        self.entries.settle(now, part)
        return None

    def forget(self) -> None:
        self.entries.forget()


class PythonModuleCondition(Condition):
    """The same Python module; what was looked up in it is a namespace of its own."""

    kind = "module"
    __slots__ = ("_module", "namespace", "_told")

    def __init__(self, module: Any) -> None:
        self._module = module
        self.namespace: NamespaceCondition | None = None
        self._told: dict[str, Any] = {}

    def ask(self, now: Any, names: frozenset[str]) -> None:
        """Notes a look at what a module of a class of its own computes: `torch.backends.mkldnn.enabled`."""
        if type(now) is types.ModuleType:
            return
        for name in names - vars(now).keys() - self._told.keys():
            computed = not name.startswith("__") and hasattr(found_on(type(now), name), "__get__")
            value = getattr(now, name, MISSING) if computed else MISSING
            if value is not MISSING and is_value(value):
                self._told[name] = value

    def refusal(self, now: Any) -> str | None:
        if now is not self._module:
            return f"changed to {shown(now)}"
        for name, was in self._told.items():
            value = getattr(now, name, MISSING)
            if not exactly_equal(value, was):
                return f"changed its '{name}' from {shown(was)} to {shown(value)}"
        return None

    def watches(self, now: Any) -> Iterator[Watch]:
        for name, value in self._told.items():
            yield "attribute", now, name, value

    def stored(self) -> tuple[frozenset[str], Any]:
        text = None if self.namespace is None else self.namespace.text
        return frozenset(self._told), [text, digest(sorted(self._told.items()))]

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        self.ask(now, names)
        if further[0] is not None:
            self.namespace = maker.namespace(further[0], vars(now))

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        if self.namespace is not None:
            yield "", self.namespace, vars(now)

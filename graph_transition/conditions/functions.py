"""Functions, and what wraps them: methods, partials, properties.

A function that is defined again with the same code is the same function, if what it reads is: a cell of a notebook that
runs again. Of one that ran, its defaults, the variables around it and its globals count; of one that did not, its code.
"""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..code_digest import code_digest
from .condition import MISSING, Before, Change, Condition, Maker, Watch, ordered, shown
from .names import NamedEntries, NamespaceCondition, set_entry

__all__ = [
    "WRAPPERS",
    "BoundBuiltinCondition",
    "FunctionCondition",
    "WrapperCondition",
    "cell_content",
    "wrapped_parts",
]

# The attributes in which a wrapper holds what it wraps.
WRAPPERS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func", "attrname"),
}
_TOLD = frozenset({"__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__defaults__",
                   "__kwdefaults__", "__closure__"})  # fmt: skip


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return MISSING


class FunctionCondition(Condition):
    """A function with the same code."""

    kind = "function"
    __slots__ = ("code", "entries", "_defaults", "_cells", "_empty", "_rest", "_scope", "_builtins", "_told")

    def __init__(self, function: types.FunctionType) -> None:
        self.code = function.__code__
        self._rest = _rest_of(function)
        self._empty: frozenset[str] = frozenset()  # variables around it that nothing has been put in yet
        self.entries = NamedEntries()
        self._defaults: dict[str, Condition] = {}
        self._cells: dict[str, Condition] | None = None
        self._scope: NamespaceCondition | None = None
        self._builtins: NamespaceCondition | None = None
        self._told: dict[str, Condition] = {}

    @property
    def ran(self) -> bool:
        return self._cells is not None

    def run(
        self, function: types.FunctionType, scope: NamespaceCondition, builtins: NamespaceCondition,
        part: Callable[[Any], Condition], content: Callable[[types.CellType], Any] = cell_content,
    ) -> None:  # fmt: skip
        """Notes that the function ran. `content` gives what a variable around it held before the forward."""
        self._scope, self._builtins = scope, builtins
        self._cells = {name: part(held) for name, held in _cells(function, content) if held is not MISSING}
        self._empty = frozenset(name for name, held in _cells(function, content) if held is MISSING)
        self._defaults = {name: part(value) for name, value in _defaults(function)}

    def see_globals(self, function: Any, apart: frozenset[str], maker: Maker) -> list[Any]:
        """Notes a look at `function.__globals__`, but at names `apart`; returns what is there."""
        self._scope = maker.namespace("the global ", function.__globals__)
        self._builtins = maker.namespace("the builtin ", function.__builtins__)
        return self._scope.entries.ask_all(function.__globals__, maker.part, apart)

    def grow(
        self, function: Any, names: frozenset[str], whole: bool, part: Callable[[Any], Condition]
    ) -> list[tuple[str, Any]]:
        """Notes a look at the function's own attributes."""
        table = vars(function)
        if whole:
            self.entries.ask_all(table, part)
        self.entries.ask(table, names, part)
        found = [(name, value) for name, value in table.items() if whole or name in names]
        for name in names & _TOLD:
            held = getattr(function, name)
            if name not in self._told:
                self._told[name] = part(held)
            found.append((name, held))
        return found

    def changed(self, now: Any, before: Before) -> list[Change]:
        named = [Change(f".{name}", name, value) for name, value in self.entries.changed(vars(now), before)]
        filled = any(content is not MISSING for name, content in _cells(now) if name in self._empty)
        if filled or not all(map(operator.is_, _rest_of(now), self._rest)):
            return [Change("", None, now)]
        return named or super().changed(now, before)

    def set(self, now: Any, name: str, value: Any) -> None:
        set_entry(vars(now), name, value)

    def settle(self, now: Any, part: Callable[[Any], Condition]) -> str | None:
        self.entries.settle(vars(now), part)
        return None

    def forget(self) -> None:
        self.entries.forget()

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, types.FunctionType):
            return f"changed from a function to {shown(now)}"
        if now.__code__ is not self.code and now.__code__ != self.code:
            return "has other code"
        if not self.ran:
            return self.entries.refusal(vars(now))
        cells = dict(_cells(now))
        if any(cells.get(name, MISSING) is MISSING for name in self._cells or ()):
            return "has other variables around it"
        if [name for name, _ in _defaults(now)] != list(self._defaults):
            return "has other default arguments"
        return self.entries.refusal(vars(now))

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        for name, part, value in self.entries.bound(vars(now)):
            yield f".{name}", part, value
        for name, part in self._told.items():
            yield f".{name}", part, getattr(now, name)
        cells = dict(_cells(now))
        for name, part in (self._cells or {}).items():
            yield f"=the variable {name} around {now.__qualname__}", part, cells[name]
        defaults = dict(_defaults(now))
        for name, part in self._defaults.items():
            yield f"=the default {name} of {now.__qualname__}", part, defaults[name]
        if self._scope is not None and self._builtins is not None:
            yield "", self._scope, now.__globals__
            yield "", self._builtins, now.__builtins__

    def stored(self) -> tuple[frozenset[str], Any]:
        further = [self.ran, ordered(self.entries.order), code_digest(self.code)]
        return self.entries.asked | frozenset(self._told), further

    def look_up(self, now: Any, names: frozenset[str], further: Any, maker: Maker) -> None:
        ran, whole, _ = further
        if ran:
            scope = maker.namespace("the global ", now.__globals__)
            self.run(now, scope, maker.namespace("the builtin ", now.__builtins__), maker.part)
        self.grow(now, names, whole is not None, maker.part)

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        self.entries.restore(vars(value), original)
        if not all(map(operator.is_, _rest_of(value), self._rest)):
            value.__code__, value.__defaults__, value.__kwdefaults__ = self._rest
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            part = (self._cells or {}).get(name)
            if part is not None and cell_content(cell) is not original(part):
                cell.cell_contents = original(part)
            elif name in self._empty and cell_content(cell) is not MISSING:
                del cell.cell_contents

    def watches(self, now: Any) -> Iterator[Watch]:
        yield "function", now, now.__code__, now.__defaults__, now.__kwdefaults__
        if self.ran:
            for cell in now.__closure__ or ():
                yield "cell", cell, cell_content(cell)
            if now.__kwdefaults__:
                yield "dict", now.__kwdefaults__, tuple(now.__kwdefaults__), tuple(now.__kwdefaults__.values())
        yield from self.entries.watches(vars(now))
        for name in self._told:
            yield "attribute", now, name, getattr(now, name)


def _rest_of(function: types.FunctionType) -> tuple[Any, Any, Any]:
    """What a function is made of that can be set anew."""
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _cells(
    function: types.FunctionType, content: Callable[[types.CellType], Any] = cell_content
) -> list[tuple[str, Any]]:
    names = function.__code__.co_freevars
    return [(n, content(c)) for n, c in zip(names, function.__closure__ or (), strict=False) if n != "__class__"]


def _defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    positional = list(enumerate(function.__defaults__ or ()))
    return [(str(i), value) for i, value in positional] + list((function.__kwdefaults__ or {}).items())


class WrapperCondition(Condition):
    """Something of the same type that wraps the same."""

    kind = "wrapper"
    __slots__ = ("_type", "_parts")

    def __init__(self, value: Any, part: Callable[[Any], Condition]) -> None:
        self._type = type(value)
        self._parts = {name: part(held) for name, held in wrapped_parts(value)}

    def refusal(self, now: Any) -> str | None:
        if type(now) is not self._type:
            return f"changed from a {self._type.__name__} to {shown(now)}"
        if [name for name, _ in wrapped_parts(now)] != list(self._parts):
            return "wraps something else"
        return None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        held = dict(wrapped_parts(now))
        for name, part in self._parts.items():
            yield "" if name.startswith("__") or name == "func" else f".{name}", part, held[name]

    def restore(self, value: Any, original: Callable[[Condition], Any]) -> None:
        held, were = dict(wrapped_parts(value)), {name: original(part) for name, part in self._parts.items()}
        if self._type is functools.partial and any(held[name] is not was for name, was in were.items()):
            value.__setstate__((were["func"], were["args"], were["keywords"], vars(value)))

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), [self._type.__qualname__, list(self._parts)]

    def watches(self, now: Any) -> Iterator[Watch]:
        if self._type is functools.partial:  # its state can be set anew
            for name in WRAPPERS[functools.partial]:
                yield "attribute", now, name, getattr(now, name)


def wrapped_parts(value: Any) -> list[tuple[str, Any]]:
    """(attribute, what is wrapped there)."""
    names = next(names for kind, names in WRAPPERS.items() if isinstance(value, kind))
    return [(name, getattr(value, name)) for name in names if getattr(value, name, None) is not None]


class BoundBuiltinCondition(Condition):
    """A method in C, bound to an object: `table.get`."""

    kind = "bound builtin"
    __slots__ = ("_name", "_part")

    def __init__(self, value: Any, part: Callable[[Any], Condition]) -> None:
        self._name = value.__name__
        self._part = part(value.__self__)

    def refusal(self, now: Any) -> str | None:
        good = type(now) in (types.BuiltinFunctionType, types.MethodWrapperType) and now.__name__ == self._name
        return None if good else f"changed to {shown(now)}"

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        yield ".__self__", self._part, now.__self__

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), self._name


class ReferenceCondition(Condition):
    """A weak reference to the same."""

    kind = "weak reference"
    __slots__ = ("_part",)

    def __init__(self, value: weakref.ref[Any], part: Callable[[Any], Condition]) -> None:
        referent = value()
        self._part = None if referent is None else part(referent)

    def refusal(self, now: Any) -> str | None:
        if not isinstance(now, weakref.ref):
            return f"changed to {shown(now)}"
        return "died, or came back" if (now() is None) != (self._part is None) else None

    def parts(self, now: Any) -> Iterator[tuple[str, Condition, Any]]:
        if self._part is not None:
            yield "", self._part, now()

    def stored(self) -> tuple[frozenset[str], Any]:
        return frozenset(), self._part is None

    def watches(self, now: Any) -> Iterator[Watch]:
        if self._part is not None:
            raise TypeError("a native check would hold what the program holds weakly")
        yield "call", now, None

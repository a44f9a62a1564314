"""Python values outside a module that its forward may read: globals, closures, and attributes of what lies there.

A traced forward bakes them, so a graph holds only while they are what they were. They are found from the bytecode of
the user's functions, starting from the forwards of all sub-modules: what it names, as far as it is plain. Installed
packages are not looked into: their globals are constants.

Not here: attributes of the modules themselves (capture/reads.py); the same walk as a digest (fingerprint.py).
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..capture.values import same, snapshot
from .code_facts import cell_content, file_origin, functions_in, global_names, names_in, origin_of

__all__ = ["ScopeRead", "scope_reads"]

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Tensor, enum.Enum)
_CONTAINERS = (list, tuple, dict)
_MISSING = object()
_MAX_DEPTH = 3  # attributes of attributes
_MAX_ITEMS = 64  # a longer list is data, which a forward would not read item by item


@dataclasses.dataclass(frozen=True, eq=False)
class ScopeRead:
    """One value: the entry `key` of a dict, or the attribute `key` of an object, and what it was.

    Attributes:
        text: what to call it ("the global SCALE").
        holder, key: where it is.
        value: its snapshot.
    """

    text: str
    holder: Any
    key: str
    value: Any

    def now(self) -> Any:
        if type(self.holder) is dict:
            return self.holder.get(self.key, _MISSING)
        return getattr(self.holder, self.key, _MISSING)

    def holds(self) -> bool:
        now = self.now()
        return now is self.value or same(now, self.value)

    def restore(self) -> None:
        """Takes out of a list or dict what a traced forward has put there: it stands for no real value."""
        now = self.now()
        if type(now) is list and type(self.value) is list:
            now[:] = self.value
        elif type(now) is dict and type(self.value) is dict:
            now.clear()
            now.update(self.value)
        elif type(self.holder) is dict:
            self.holder[self.key] = self.value
        else:
            setattr(self.holder, self.key, self.value)


def scope_reads(module: torch.nn.Module) -> list[ScopeRead]:
    """What the forwards of `module` and its sub-modules may read outside of them."""
    walk = _Walk()
    for kind in dict.fromkeys(type(m) for m in module.modules()):
        for base in kind.__mro__:
            if origin_of(base.__module__) == "user" and "forward" in vars(base):
                walk.member(vars(base)["forward"], kind)
    for m in module.modules():
        for value in list(vars(m).values()):
            if isinstance(value, types.FunctionType):
                walk.member(value, None)
    return list(walk.reads.values())


class _Walk:
    """Follows functions by the names in their bytecode."""

    def __init__(self) -> None:
        self.reads: dict[tuple[int, str], ScopeRead] = {}
        self._followed: set[tuple[int, type | None]] = set()

    def member(self, value: Any, owner: type | None) -> None:
        """A function, or a member of the class `owner` that wraps some."""
        for function in functions_in(value):
            code = function.__code__
            if (id(function), owner) in self._followed or file_origin(code.co_filename) != "user":
                continue
            self._followed.add((id(function), owner))
            names = names_in(code)
            for name in global_names(code):
                if name in function.__globals__:
                    self._read(f"the global {name}", function.__globals__, name, names)
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                if name != "__class__":
                    self._read(f"the variable {name} around {function.__qualname__}", cell, "cell_contents", names)
            for called in names if owner is not None else ():
                found = next((vars(base)[called] for base in owner.__mro__ if called in vars(base)), None)  # type: ignore[union-attr]
                if found is not None and called != "forward":
                    self.member(found, owner)

    def _read(self, text: str, holder: Any, key: str, names: tuple[str, ...], depth: int = 0) -> None:
        value = cell_content(holder) if isinstance(holder, types.CellType) else _entry(holder, key)
        place = (id(holder), key)
        if place in self.reads or value is _MISSING:
            return
        if isinstance(value, types.FunctionType | staticmethod | classmethod | property):
            self.member(value, None)
        elif isinstance(value, _PLAIN) or (isinstance(value, _CONTAINERS) and _is_data(value)):
            self.reads[place] = ScopeRead(text, holder, key, snapshot(value))
        elif depth < _MAX_DEPTH and _is_namespace(value):
            for name in _members(value, names):
                self._read(f"{text}.{name}", value, name, names, depth + 1)


def _entry(holder: Any, key: str) -> Any:
    if type(holder) is dict:
        return holder.get(key, _MISSING)
    found = vars(holder).get(key, _MISSING)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def _is_data(value: Any, depth: int = 3) -> bool:
    """Whether a container holds plain values only, to every depth."""
    if isinstance(value, _PLAIN):
        return True
    if depth == 0 or type(value) not in _CONTAINERS or len(value) > _MAX_ITEMS:
        return False
    return all(_is_data(v, depth - 1) for v in (value.values() if type(value) is dict else value))


def _is_namespace(value: Any) -> bool:
    """Whether the names of a value are worth a look: a user's module of Python, class or object of settings."""
    table = getattr(value, "__dict__", None)
    if isinstance(value, torch.nn.Module) or not isinstance(table, dict | types.MappingProxyType):
        return False
    name = value.__name__ if isinstance(value, types.ModuleType) else _class_of(value).__module__
    return isinstance(value, types.SimpleNamespace) or origin_of(name) == "user"


def _class_of(value: Any) -> type:
    return value if isinstance(value, type) else type(value)


def _members(value: Any, names: tuple[str, ...]) -> Iterator[str]:
    own = vars(value)
    return (name for name in names if name in own and not name.startswith("__"))

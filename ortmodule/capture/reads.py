"""Which Python values a traced forward reads from its modules and from the objects that they hold, and which it sets.

Such values are baked into the graph; a later call must find the same ones. Reads are noted by the attribute access
itself: nn.Module's for the modules' own attributes, and, for an object that a module holds (a configuration, a
dataclass of hyperparameters), its class's, for as long as the trace runs.

An entry is (owner, path, value): the module's qualified name, the attribute's name with those of the objects in between
("config.hidden_size"), and what was read. What a forward sets on a module without having looked at it
(`self.aux_loss = ...`) is a result of the call, to be set again by every other. Not here: comparing values (values.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .values import same, snapshot

__all__ = ["AttributeReads", "Held", "holder_of", "holds", "recorded_reads"]

_KINDS = (
    bool, int, float, complex, str, type(None), torch.dtype, torch.Tensor, tuple, list, dict, set, frozenset, enum.Enum,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial,
)  # fmt: skip
_PLAIN = (bool, int, float, complex, str, type(None), torch.SymInt, torch.SymFloat, torch.SymBool)
_REPEATABLE = (bool, int, float, complex, str, type(None), torch.SymInt)  # what a graph can set on a module
_TABLES = ("_parameters", "_buffers", "_modules")  # of what nn.Module.__getattr__ finds
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: only such a class can be given another __getattribute__,
_IMMUTABLE_TYPE = 1 << 8  # and not this one, Py_TPFLAGS_IMMUTABLETYPE
_MISSING = object()
# What nn.Module keeps for itself; hooks and sub-modules are watched by the transition manager.
_MODULE_INTERNALS = frozenset({*vars(torch.nn.Module), *vars(torch.nn.Module()), "training", "__class__"})


@functools.lru_cache(maxsize=4096)
def _is_class_setting(kind: type, name: str) -> bool:
    """Whether `name` is a plain value of the class: a default that an instance may come to override."""
    for base in kind.__mro__:
        if name in vars(base):
            value = vars(base)[name]
            return isinstance(value, _KINDS) and not isinstance(value, _FUNCTIONS)
    return False


def holder_of(module: torch.nn.Module, owner: str, path: str) -> tuple[Any, str]:
    """The object whose attribute an entry names, and that attribute. Raises AttributeError where it is no longer so."""
    holder: Any = module.get_submodule(owner)
    *inner, name = path.split(".")
    for part in inner:
        holder = getattr(holder, part)
    return holder, name


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """An object that was read; what was read from it are entries of their own."""

    value: Any


def holds(now: Any, noted: Any) -> bool:
    """Whether a value is still as an entry has it."""
    if isinstance(noted, Held):
        return type(now) is type(noted.value)
    return now is noted or same(now, noted)


def _holds_fake(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(map(_holds_fake, value.values() if isinstance(value, dict) else value))
    return isinstance(value, FakeTensor)


def _is_repeatable(value: Any) -> bool:
    """Whether a graph can set this on a module at each call."""
    if type(value) in (list, tuple, dict):
        return all(map(_is_repeatable, value.values() if type(value) is dict else value))
    return isinstance(value, (*_REPEATABLE, FakeTensor)) or _holds_fake(value)


def _is_settings(value: Any) -> bool:
    """Whether a value is an object whose attributes are worth noting, not one that computes."""
    kind = type(value)
    return (
        (kind.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE or kind is types.SimpleNamespace)
        and not isinstance(value, type | types.ModuleType | torch.nn.Module | torch.Tensor | enum.Enum)
        and not kind.__module__.startswith(("torch.", "numpy"))
        and isinstance(getattr(value, "__dict__", None), dict)
    )


def _refill(now: Any, was: Any) -> bool:
    """Gives a list or dict back what it held; False where `now` is none, or another kind than before."""
    if type(now) is not type(was) or type(now) not in (list, dict):
        return False
    if type(now) is list:
        now[:] = was
    else:
        now.clear()
        now.update(was)
    return True


class AttributeReads:
    """The entries of one trace.

    `values` maps (module, path) to the value first read, for numbers, strings, None, functions, plain tensors,
    containers of whatever they hold, and objects (`Held`), whose own attributes follow as further entries.
    `changed` names the attributes that the forward left different and that no graph can set.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._names = {module: name for name, module in root.named_modules()}
        # id of an object -> it, where it was first met, and what it held then
        self._places: dict[int, tuple[Any, str, str, dict[str, Any]]] = {}
        self.watch_class: Callable[[type], None] = lambda kind: None  # set while reads are recorded
        self.values: dict[tuple[str, str], Any] = {}
        self._read: set[tuple[str, str]] = set()
        self._absent: set[tuple[torch.nn.Module, str]] = set()  # what was asked for and not there
        self._written: dict[tuple[torch.nn.Module, str], None] = {}  # set before it was looked at, in order
        self._running = False  # whether the forward itself runs: torch's export sets attributes around it
        self.changed: list[str] = []
        self._before = {module: dict(vars(module)) for module in self._names}

    def record(self, module: torch.nn.Module, name: str, value: Any) -> None:
        """Notes one read of `module.name`; the first value wins."""
        if name in _MODULE_INTERNALS or name.startswith("__"):
            return
        if name[0] == "_" and type(module).__module__.startswith("torch."):  # an RNN's `_flat_weights`, say
            return
        if name in vars(module) or _is_class_setting(type(module), name):  # type: ignore[arg-type]
            owner = self._names.get(module)
            if owner is not None:
                self._read.add((owner, name))
                # What the forward has set before it reads it is no input of it.
                if (module, name) in self._written:
                    return
                if holds(value, self._before[module].get(name, getattr(type(module), name, _MISSING))):
                    self._note(owner, name, value)

    def record_absent(self, module: torch.nn.Module, name: str) -> None:
        """Notes that `module.name` was asked for and is not set: `getattr(self, "ready", False)`."""
        tables = vars(module)
        if not name.startswith("__") and not any(name in tables.get(t, ()) for t in _TABLES) and module in self._names:
            self._absent.add((module, name))

    def record_write(self, module: torch.nn.Module, name: str) -> None:
        """Notes that `module.name` is set by the forward."""
        owner = self._names.get(module)
        looked_at = owner is None or (owner, name) in self._read or (module, name) in self._absent
        if self._running and not looked_at and not self._is_torchs_own(module, name):
            self._written[module, name] = None

    @staticmethod
    def _is_torchs_own(module: torch.nn.Module, name: str) -> bool:
        """An RNN's `_flat_weights`, or what weight_norm and its like set before each forward, which alone reads it."""
        hooks = module._forward_pre_hooks.values()
        internal = type(module).__module__.startswith("torch.") and name[0] == "_"
        return internal or any(str(type(hook).__module__).startswith("torch.nn.utils.") for hook in hooks)

    def _results(self) -> list[tuple[torch.nn.Module, str, Any]]:
        """The attributes that the forward has set and had not looked at: (module, name, value)."""
        found = []
        for module, name in self._written:
            value = vars(module).get(name, _MISSING)
            if name not in _MODULE_INTERNALS and _is_repeatable(value):
                found.append((module, name, value))
        return found

    def record_object(self, holder: Any, name: str, value: Any) -> None:
        """Notes one read of an object that a module holds."""
        place = self._places.get(id(holder))
        if place is None or name.startswith("__") or isinstance(value, types.MethodType):
            return
        if name in vars(holder) or not hasattr(type(holder), name):  # no method or property: those read on
            self._note(place[1], f"{place[2]}.{name}", value)

    def _note(self, owner: str, path: str, value: Any) -> None:
        if (owner, path) in self.values or isinstance(value, FakeTensor):  # the latter the forward itself has set
            return
        if isinstance(value, _KINDS):
            self.values[owner, path] = snapshot(value)
        elif _is_settings(value):
            self.values[owner, path] = Held(value)
            if id(value) in self._places:
                return
            self._places[id(value)] = (value, owner, path, snapshot(dict(vars(value))))
            if type(value) is types.SimpleNamespace:  # its class cannot be watched: everything in it counts as read
                for name, inner in vars(value).items():
                    self._note(owner, f"{path}.{name}", inner)
            else:
                self.watch_class(type(value))

    def _set(self) -> Iterator[tuple[torch.nn.Module, str, bool]]:
        """The attributes that the traced forward has set and left different, and whether it left a tensor there: the
        trace's own, which stands for no real one. Not what it also reads: what a forward tells itself is in the graph.
        """
        for module, before in self._before.items():
            for name, value in list(vars(module).items()):
                if (module, name) in self._written and _is_repeatable(value):
                    continue
                was = before.get(name, getattr(type(module), name, _MISSING))
                if value is was or name in _MODULE_INTERNALS:
                    continue
                if _holds_fake(value):
                    yield module, name, True
                elif isinstance(value, _PLAIN) and not type(module).__module__.startswith("torch."):
                    if (self._names[module], name) not in self._read and not holds(value, was):
                        yield module, name, False

    def _reset(self, module: torch.nn.Module, name: str) -> None:
        if name in self._before[module]:
            vars(module)[name] = self._before[module][name]
        else:
            del vars(module)[name]

    def restore(self) -> None:
        """Gives the attributes that hold tensors of the trace, and those that are results, back what they were."""
        for module, name, _ in self._results():
            self._reset(module, name)
        for module, name, tensor in list(self._set()):
            if tensor:
                self._reset(module, name)
        for (owner, path), value in self.values.items():
            with contextlib.suppress(AttributeError):
                holder, name = holder_of(self._root, owner, path)
                now = getattr(holder, name)
                if _holds_fake(now):
                    _refill(now, value)
        self._restore_objects()

    def _restore_objects(self) -> None:
        """Gives the objects that modules hold back what they held, and notes what the trace has changed there."""
        for held, owner, path, before in self._places.values():
            table = vars(held)
            for name, now in list(table.items()):
                was = before.get(name, _MISSING)
                if holds(now, was) or not _holds_fake(now) and (was is _MISSING or was is None):
                    continue
                self._note_change(owner, f"{path}.{name}")
                if was is _MISSING:
                    del table[name]
                elif not _refill(now, was):
                    table[name] = was

    def _note_change(self, owner: str, path: str) -> None:
        name = f"{owner}.{path}".lstrip(".")
        if name not in self.changed:
            self.changed.append(name)

    def begin(self) -> None:
        """Called before the traced forward."""
        self._running = True
        self._written.clear()

    def finish(self) -> list[tuple[torch.nn.Module, str, Any]]:
        """Called at the end of the traced forward: notes in `changed` which attributes it left different.

        Returns the (module, name, value) of those that are results of the call; the modules no longer hold them.
        """
        self._running = False
        results = self._results()
        for module, name, _ in results:
            self._reset(module, name)
        for module, name in self._absent:
            # A flag that is raised at the first call: from now on it is that. A number could be a count.
            if isinstance(vars(module).get(name), bool | str):
                self._read.add((self._names[module], name))
                self.values[self._names[module], name] = vars(module)[name]
        for module, name, tensor in list(self._set()):
            if not tensor:
                self._reset(module, name)
            elif name[0] == "_" and type(module).__module__.startswith("torch."):
                continue
            if not self._is_torchs_own(module, name):
                self._note_change(self._names[module], name)
        for (owner, path), value in list(self.values.items()):
            try:
                holder, name = holder_of(self._root, owner, path)
                now = getattr(holder, name)
            except AttributeError:
                now = _MISSING
            if holds(now, value):
                continue
            if value is None and isinstance(now, bool | int | float | str):
                # A default chosen at the first call (transformers' `config.problem_type`): from now on it is that.
                self.values[owner, path] = now
                continue
            self._note_change(owner, path)
            _refill(now, value)  # what the traced forward put into a container stands for no real value
        return results


@contextlib.contextmanager
def recorded_reads(reads: AttributeReads, thread: int) -> Iterator[None]:
    """Within it, `reads` receives what thread `thread` reads."""

    def getattribute(self: torch.nn.Module, name: str) -> Any:
        try:
            value = object.__getattribute__(self, name)
        except AttributeError:
            if threading.get_ident() == thread:
                reads.record_absent(self, name)
            raise
        if threading.get_ident() == thread:
            reads.record(self, name, value)
        return value

    def setattribute(self: torch.nn.Module, name: str, value: Any) -> None:
        original_set(self, name, value)
        if threading.get_ident() == thread and name in vars(self):
            reads.record_write(self, name)

    original_set = torch.nn.Module.__setattr__
    before: dict[type, Any] = {}

    def watch_class(kind: type) -> None:
        if kind in before:
            return
        original: Callable[[Any, str], Any] = getattr(kind, "__getattribute__")  # noqa: B009

        def watched(self: Any, name: str) -> Any:
            value = original(self, name)
            if threading.get_ident() == thread:
                reads.record_object(self, name, value)
            return value

        before[kind] = vars(kind).get("__getattribute__", _MISSING)
        setattr(kind, "__getattribute__", watched)  # noqa: B010

    reads.watch_class = watch_class
    setattr(torch.nn.Module, "__getattribute__", getattribute)  # noqa: B010
    setattr(torch.nn.Module, "__setattr__", setattribute)  # noqa: B010
    try:
        yield
    finally:
        delattr(torch.nn.Module, "__getattribute__")
        setattr(torch.nn.Module, "__setattr__", original_set)  # noqa: B010
        reads.restore()
        reads.watch_class = lambda kind: None
        for kind, raw in before.items():
            if raw is _MISSING:
                delattr(kind, "__getattribute__")
            else:
                setattr(kind, "__getattribute__", raw)  # noqa: B010

"""What class a tensor, a size or a module is of: the user's code hears of what it would have outside of a trace.

`type(x)` asks no attribute that could be replaced, and torch's own code asks it all the time while it traces. So a
`type` of ours is given to the user's functions alone: as a global of theirs, when they are entered, for as long as the
forward runs. `isinstance(n, int)` asks `n.__class__` in the end, and that tells who asks.
Not here: what else a symbolic size tells of itself (symbolic_numbers.py), classes of tensors with a behavior of their
own, which are refused (refusals.py).
"""

from __future__ import annotations

import contextlib
import gc
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import _AttrProxy

from ..... import _C
from ...patching import FORWARD, Around, added
from ...tracing import TraceState

__all__ = ["NUMBERS", "PATCHES", "is_users"]

_TRACED = (FakeTensor, FunctionalTensor)
NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _class_of(value: Any) -> type:
    """The class that `type(value)` would give outside of the trace."""
    kind = type(value)
    if kind in NUMBERS:
        return NUMBERS[kind]
    if isinstance(value, _AttrProxy):
        return type(value.get_base())  # type: ignore[attr-defined]
    if kind not in _TRACED:
        return kind
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


class _Type:
    """Stands for `type`: as a base class, as a class to be asked for, in type hints, where an object's class is asked,
    and with its attributes, `__dict__` included.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        found = type if args[0] is self else _class_of(args[0])
        return self if found is type else found

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, type)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type,)

    def __getattribute__(self, name: str) -> Any:
        own = name in ("__class__", "__mro_entries__")  # which Python looks up as attributes
        return object.__getattribute__(self, name) if own else getattr(type, name)

    def __getitem__(self, item: Any) -> Any:
        return type[item]

    def __or__(self, other: Any) -> Any:
        return type | other

    def __ror__(self, other: Any) -> Any:
        return other | type

    def __repr__(self) -> str:
        return repr(type)

    def __eq__(self, other: Any) -> bool:
        return other is self or other is type

    def __hash__(self) -> int:
        return hash(type)


class _GivenNames:
    """`type` as a global of the user's functions."""

    def __init__(self) -> None:
        self._type = _Type()
        self._places = contextlib.ExitStack()
        self._tables: set[int] = set()

    def entered(self, function: types.FunctionType, names: frozenset[str]) -> None:
        table, module = function.__globals__, _module_of(function.__globals__)
        if module == "inspect" or not _counts(module):  # the former asks what only classes in C are asked
            return
        if "type" in names and "type" not in table and id(table) not in self._tables:
            self._tables.add(id(table))
            self._places.enter_context(added(table, "type", self._type, type))

    def taken_back(self) -> None:
        self._places.close()
        self._tables.clear()


@contextlib.contextmanager
def _given_to_functions(state: TraceState) -> Iterator[None]:
    if state.audit is None:
        yield
        return
    state.audit.given = given = _GivenNames()
    try:
        yield
    finally:
        state.audit.given = None
        given.taken_back()


def _module_of(table: dict[str, Any]) -> str:
    return str(table.get("__name__"))


def _counts(module: str) -> bool:
    return module.partition(".")[0] not in ("torch", "ortmodule", "sympy", "copy", "copyreg", "functools")


def is_users(frame: types.FrameType | None) -> bool:
    """Whether a frame is of the user's code, or of an abstract class's check in it."""
    while frame is not None and _module_of(frame.f_globals) == "abc":
        frame = frame.f_back
    return frame is not None and _counts(_module_of(frame.f_globals))


def _kind_of(scope: dict[str, Any]) -> int:
    """The same of code with these globals: 0 or 1; 3 where what has called it says it."""
    module = _module_of(scope)
    return 3 if module == "abc" else int(_counts(module))


@contextlib.contextmanager
def _told_by_attribute(state: TraceState) -> Iterator[None]:
    """`x.__class__`, which `isinstance` asks too. To set such an attribute of a class would set the class of the class;
    so it goes into its dict.
    """

    ask = _C.patched_call(_class_of, type, type, _C.Callers(_kind_of))
    kinds = (*_TRACED, *NUMBERS)
    tables = [next(one for one in gc.get_referents(vars(kind)) if type(one) is dict) for kind in kinds]
    try:
        for kind, table in zip(kinds, tables, strict=True):
            table["__class__"] = property(ask)
            kind.__module__ = kind.__module__  # which empties CPython's cache of its attributes
        yield
    finally:
        for kind, table in zip(kinds, tables, strict=True):
            table.pop("__class__", None)
            kind.__module__ = kind.__module__


PATCHES = (Around(_given_to_functions, during=FORWARD), Around(_told_by_attribute, during=FORWARD))

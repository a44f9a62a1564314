"""What a function gets hold of through an object that it has in hand, by the names that it uses."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from ...capture.trace.patching import ADDED
from ..conditions import (
    MISSING,
    OF_IMPORT,
    BoundBuiltinCondition,
    CacheCondition,
    ClassCondition,
    Condition,
    ContextVariableCondition,
    FunctionCondition,
    LocalCondition,
    LockCondition,
    LoggerCondition,
    Maker,
    MappingCondition,
    ObjectCondition,
    PythonModuleCondition,
    ReferenceCondition,
    SequenceCondition,
    UnknownCondition,
    WrapperCondition,
    books_of,
    cached_in,
    is_of_program,
    is_opaque_module,
    value_in_context,
    wrapped_parts,
)
from .code_names import Names, with_forward
from .contents import content_of
from .frames import BOOKKEEPERS

__all__ = ["is_handed_over", "led_to_by"]

# What holds functions without a name for each, and what calls the one that it holds.
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_HOLDING = (functools.partial, types.CellType, property)
# What calls, in C, functions that it is given.
_CALLERS = frozenset(
    {
        "map", "filter", "iter", "sorted", "min", "max", "sort", "partial", "reduce", "starmap", "accumulate",
        "takewhile", "dropwhile", "filterfalse", "groupby", "defaultdict", "call", "run",
    }
)  # fmt: skip


def _added(table: dict[str, Any]) -> frozenset[str]:
    """Names that the capture has put there."""
    return frozenset(name for name, held in table.items() if id(held) in ADDED) if ADDED else frozenset()


def led_to_by(maker: Maker, condition: Condition, value: Any, names: Names) -> Iterable[Any]:
    """What a function with these names gets hold of through `value`."""
    asked, part = names.attributes, maker.part
    if isinstance(value, torch.nn.Module):
        asked = with_forward(asked)  # nn.Module.__call__ looks it up
    if isinstance(condition, ObjectCondition):
        condition.keep(value, names.stored)
        if hasattr(type(value), "__slots__"):
            asked = asked | names.stored
        in_c = names.shows and isinstance(value, types.SimpleNamespace)
        whole = names.any_name or in_c
        found = [v for _, v in condition.grow(value, asked, whole, part)]
        if isinstance(value, torch.nn.Module):
            kind = maker.part(type(value))
            found += [v for _, v in kind.grow(asked, whole, part)] if isinstance(kind, ClassCondition) else []
        return [*found, type(value), *content_of(value)]
    if isinstance(condition, ClassCondition):
        found = [v for _, v in condition.grow(asked | names.stored, names.any_name, part)]
        return found if type(value) is type else [*found, type(value)]
    if isinstance(condition, PythonModuleCondition):
        return _of_module(maker, condition, value, names)
    if isinstance(condition, FunctionCondition):
        return _of_function(maker, condition, value, names)
    if isinstance(condition, (SequenceCondition, MappingCondition)):
        return content_of(value)
    if isinstance(condition, LockCondition) and not asked.isdisjoint(LockCondition.ASKING):
        condition.ask(value)
    if isinstance(condition, CacheCondition):
        return [value.__wrapped__, *cached_in(value)]
    if isinstance(condition, WrapperCondition):
        return [v for _, v in wrapped_parts(value)]
    if isinstance(condition, LocalCondition):
        return [v for _, v in condition.grow(asked | names.stored, names.any_name, part)]
    if isinstance(condition, LoggerCondition):
        return condition.grow(asked, names.stored, names.any_name, part) if not names.of_torch else ()
    if isinstance(condition, BoundBuiltinCondition):
        return [value.__self__]
    if isinstance(condition, ContextVariableCondition):
        held = value_in_context(value)
        return [] if held is MISSING else [held]
    if isinstance(condition, ReferenceCondition):
        return [value()]
    if isinstance(condition, UnknownCondition):
        return gc.get_referents(value)
    return ()


def is_handed_over(holder: Any, function: Any, names: Names) -> bool:
    """Whether code may have a function, which it finds in `holder`, called by another one in C: what it calls itself is
    heard of.
    """
    if isinstance(holder, dict) and "__name__" in holder:  # globals
        return any(holder.get(name) is function for name in names.passed)
    if isinstance(holder, _CONTAINERS):
        return not names.attributes.isdisjoint(_CALLERS)
    if isinstance(holder, _HOLDING):
        return True
    return any(inspect.getattr_static(holder, name, None) is function for name in names.passed)


def _of_module(maker: Maker, condition: PythonModuleCondition, value: types.ModuleType, names: Names) -> Iterable[Any]:
    part = maker.part
    if value.__name__ in BOOKKEEPERS:
        return ()
    found = _named_of_module(maker, condition, value, names)
    if names.any_name and not is_opaque_module(value.__name__):
        added, own = _added(vars(value)), is_of_program(vars(value))
        apart = books_of(value.__name__) | added | OF_IMPORT
        if not own:  # what a package keeps and nobody can watch is no state of the user's
            apart |= {name for name, held in vars(value).items() if isinstance(part(held), UnknownCondition)}
        every = condition.namespace.entries.ask_all(vars(value), part, apart)  # type: ignore[union-attr]
        found += _computed(maker, every, names) if own else []
    return found


def _named_of_module(
    maker: Maker, condition: PythonModuleCondition, value: types.ModuleType, names: Names
) -> list[Any]:
    """What a Python module has under the names that are spelled out."""
    scope = maker.namespace(f"the global {value.__name__}.", vars(value))
    condition.namespace = scope
    if not names.of_torch:  # torch sets some of its own otherwise while it traces
        condition.ask(value, names.attributes)
    scope.entries.keep(vars(value), names.stored)
    return scope.grow(vars(value), names.attributes - _added(vars(value)), maker.part)


def _computed(maker: Maker, every: Iterable[Any], names: Names) -> list[Any]:
    """What a computed name may give of a Python module. Of those that it has imported not all counts in turn, which
    would be the whole program, but what has a name that is spelled out.
    """
    found = []
    for held in every:
        if not isinstance(held, types.ModuleType) or sys.modules.get(held.__name__) is not held:
            found.append(held)
        elif is_of_program(vars(held)) and isinstance(condition := maker.part(held), PythonModuleCondition):
            found += _named_of_module(maker, condition, held, names)
    return found


def _of_function(maker: Maker, condition: FunctionCondition, value: types.FunctionType, names: Names) -> Iterable[Any]:
    asked, part = names.attributes, maker.part
    condition.entries.keep(vars(value), names.stored)
    found = [v for _, v in condition.grow(value, asked, names.any_name, part)]
    if "__globals__" in asked and is_of_program(value.__globals__):
        every = condition.see_globals(value, OF_IMPORT | _added(value.__globals__), maker)
        found += _computed(maker, every, names)
    return found

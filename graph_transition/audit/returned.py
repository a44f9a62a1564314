"""Python objects that a forward returns: what gives the same at each call of its graph.

An object that was there before the call is returned itself, as the conditions find it at the call. One that the forward
has made is made anew, for the caller may change it. What is neither, and holds more than numbers and strings, is a
reason to run in PyTorch. Not here: tensors, and the containers that a result is made of (capture).
"""

from __future__ import annotations

import array
import collections
import copy
import enum
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from ...errors import CaptureError
from ...naming import module_of
from ..conditions import MISSING, Condition, is_value
from ..conditions.mappings import entries_of, mapping_type
from ..conditions.objects import instance_table, slots_of
from ..conditions.origin import is_native
from ..conditions.sequences import items_of, sequence_type

__all__ = ["Returned"]

_HEAP_TYPE = 1 << 9
_CONSTANTS = (
    torch.device, torch.dtype, torch.finfo, torch.iinfo, torch.layout, torch.memory_format, torch.qscheme,
)  # fmt: skip


class Returned:
    """An object of a result.

    Args:
        value: what the trace has returned.
        condition_of: the condition of an object that was there before the forward, None of any other.

    Raises:
        CaptureError: it cannot be made again.
    """

    def __init__(self, value: Any, condition_of: Callable[[Any], Condition | None]) -> None:
        self._value = value
        self.conditions: dict[int, Condition] = {}  # by the identity of what was there before and is part of it

        def known(one: Any) -> Any:
            condition = condition_of(one)
            if condition is not None:
                self.conditions[id(one)] = condition
            return MISSING if condition is None else one

        _copied(value, known, {})

    def at_a_call(self, bound: Mapping[int, Any], copies: dict[int, Any]) -> Any:
        """The object of one call.

        Args:
            bound: by a condition's identity, the object that it holds for.
            copies: by the identity of what the trace has made, what stands for it in this call.
        """

        def known(one: Any) -> Any:
            condition = self.conditions.get(id(one))
            return MISSING if condition is None else bound.get(id(condition), one)

        return _copied(self._value, known, copies)


def _copied(value: Any, known: Callable[[Any], Any], copies: dict[int, Any]) -> Any:
    """The value; of what the forward has made, a copy. `known` gives what was there before, or MISSING."""
    if is_value(value):
        return value
    found = known(value)
    if found is MISSING:
        found = copies.get(id(value), MISSING)
    if found is not MISSING:
        return found
    kind: Any = type(value)
    if _is_the_only_one(value, known):
        return value
    if kind in (numpy.ndarray, bytearray, array.array) and not (kind is numpy.ndarray and value.dtype.hasobject):
        made = value.copy("K") if kind is numpy.ndarray else copy.copy(value)
        if kind is numpy.ndarray and made.strides != value.strides:  # a view, of what it does not tell
            raise _impossible(value)
        copies[id(value)] = made
        return made
    if known(kind) is MISSING and not _is_the_only_one(kind, known):
        raise _impossible(value)
    return _copied_container(value, lambda one: _copied(one, known, copies), copies)


def _is_the_only_one(value: Any, known: Callable[[Any], Any]) -> bool:
    """Whether no forward can have made it, or whether nothing tells it from another that is made again."""
    if isinstance(value, type):  # one that the forward has made is a class of its own at each call
        named = sys.modules.get(module_of(value))
        for name in value.__qualname__.split("."):
            named = getattr(named, name, None)
        return not value.__flags__ & _HEAP_TYPE or named is value
    if isinstance(value, enum.Enum):
        return known(type(value)) is not MISSING or _is_the_only_one(type(value), known)
    if isinstance(value, types.ModuleType):
        return sys.modules.get(value.__name__) is value
    if isinstance(value, types.BuiltinFunctionType):  # a method has an object
        owner = value.__self__
        return owner is None or is_value(owner) or isinstance(owner, types.ModuleType | type)
    return isinstance(value, _CONSTANTS)


def _impossible(value: Any) -> CaptureError:
    what = (
        f"the class {value.__qualname__}" if isinstance(value, type) else f"an object of class {type(value).__name__}"
    )
    return CaptureError(f"the module returns {what} that cannot be made again")


def _copied_container(value: Any, part: Callable[[Any], Any], copies: dict[int, Any]) -> Any:
    kind: Any = type(value)
    made: Any
    mapping: Any = mapping_type(kind)
    sequence: Any = sequence_type(kind)
    native: Any = next(base for base in kind.__mro__ if is_native(base))
    if sequence in (tuple, frozenset):
        made = sequence.__new__(kind, [part(item) for item in items_of(value, sequence)])
    elif sequence is not None:
        made = sequence.__new__(kind)
        copies[id(value)] = made
        items = [part(item) for item in items_of(value, sequence)]
        arguments = (items, value.maxlen) if sequence is collections.deque else (items,)
        sequence.__init__(made, *arguments)
    elif mapping is not None and mapping is not types.MappingProxyType:
        made = copies[id(value)] = mapping.__new__(kind)
        for key, held in entries_of(value, mapping):
            mapping.__setitem__(made, part(key), part(held))
        if isinstance(value, collections.defaultdict):
            made.default_factory = part(value.default_factory)
    elif native in (object, types.SimpleNamespace) and not isinstance(value, torch.nn.Module):
        made = native.__new__(kind)
    else:
        raise _impossible(value)
    copies[id(value)] = made
    for name, held in (instance_table(value) or {}).items():
        instance_table(made)[name] = part(held)  # type: ignore[index]
    for name, held in slots_of(value):
        object.__setattr__(made, name, part(held))
    return made

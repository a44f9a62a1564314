"""What outlives a trace, and what it holds.

A custom function's Python runs at each call of the graph, and is given the objects of the trace again. What it reads of
them it reads as the trace has left them: a tensor there has no numbers; and what it writes there is still there at the
next call, where eager has another object. A cached function has results of a trace for whoever calls it next.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["holds_traced", "kept_reason"]

# What leads to everything, or to nothing of a forward's.
_PASSED_BY = (
    type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, str, bytes, int, float,
)  # fmt: skip
_CHANGEABLE = (list, dict, set, bytearray, np.ndarray, torch.nn.Module)
_MOST_OBJECTS = 300_000  # some tenths of a second
_REGISTRIES = ("_parameters", "_buffers")  # a module's own tensors are there again when the trace has ended
_WRITES = ("STORE_DEREF", "DELETE_DEREF")


def holds_traced(roots: Iterable[Any], most: int = _MOST_OBJECTS) -> bool | None:
    """Whether a tensor of the running trace can be reached from `roots`, but by a module's parameters and buffers; None
    where more than `most` objects would have to be looked at.
    """
    pending: list[Any] = list(roots)
    seen: dict[int, Any] = {}  # identities are theirs for as long as the walk lasts
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, _PASSED_BY):
            continue
        if len(seen) > most:
            return None
        seen[id(value)] = value
        if isinstance(value, FakeTensor):
            return True
        pending.extend(_led_to(value))
    return False


def kept_reason(roots: Iterable[Any], was_there: Callable[[Any], bool]) -> str | None:
    """Why a function that is called again with `roots` would not find them as in eager; None where it would.

    Args:
        roots: what it is given besides tensors, and its own functions.
        was_there: whether an object was there before the forward. What the forward has made must be such that nothing
            can be written into it.
    """
    values = list(roots)
    if holds_traced(values) is not False:
        return "can reach a tensor of the forward that is no argument of it"
    while values:
        value = values.pop()
        if isinstance(value, (*_PASSED_BY, torch.Tensor, enum.Enum)) or was_there(value):
            continue
        if isinstance(value, types.FunctionType):
            if _writes_around(value.__code__, frozenset(value.__code__.co_freevars)):
                return f"writes variables around it ({value.__qualname__})"
            values.extend(cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
            values.extend((*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()))
        elif isinstance(value, functools.partial):
            values.extend((value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, types.MethodType):
            values.extend((value.__self__, value.__func__))
        elif isinstance(value, (tuple, frozenset)):
            values.extend(value)
        elif _is_frozen(value):
            values.extend(vars(value).values())
        elif isinstance(value, _CHANGEABLE) or hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            return f"is given an object that the forward makes (of class {type(value).__qualname__})"
    return None


def _led_to(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.nn.Module):
        yield from (held for name, held in vars(value).items() if name not in _REGISTRIES)
    elif isinstance(value, types.FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), value.__kwdefaults__)
    elif not isinstance(value, torch.Tensor):
        yield from gc.get_referents(value)


def _is_frozen(value: Any) -> bool:
    """Whether it is a dataclass whose attributes cannot be set."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and hasattr(value, "__dict__")


def _writes_around(code: types.CodeType, around: frozenset[str]) -> bool:
    """Whether code writes variables `around` it, or code in it does."""
    if any(one.opname in _WRITES and one.argval in around for one in dis.get_instructions(code)):
        return True
    return any(_writes_around(one, around) for one in code.co_consts if isinstance(one, types.CodeType))

"""Tensors of a trace that something holds which outlives it.

A custom function's Python runs at each call of the graph. What it reads of objects that it was given, or of variables
around it, it reads as the trace has left them: a tensor there has no numbers. A cached function has results of a trace
for whoever calls it next.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["holds_traced"]

# What leads to everything, or to nothing of a forward's.
_PASSED_BY = (
    type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, str, bytes, int, float,
)  # fmt: skip
_MOST_OBJECTS = 300_000  # half a second
_REGISTRIES = ("_parameters", "_buffers")  # a module's own tensors are there again when the trace has ended


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
        if isinstance(value, torch.nn.Module):
            pending.extend(held for name, held in vars(value).items() if name not in _REGISTRIES)
        elif isinstance(value, types.FunctionType):
            pending.extend((*(value.__closure__ or ()), *(value.__defaults__ or ()), value.__kwdefaults__))
        elif not isinstance(value, torch.Tensor):
            pending.extend(gc.get_referents(value))
    return False

"""Operators that make a tensor from sizes and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..emitter import Emitter
from ..onnx_graph import Value, tensor_proto
from ..registry import translates

_HALVES = (torch.float16, torch.bfloat16)
_MOST_POINTS = 4096


def _filled(c: Emitter, value: Any) -> Any:
    if c.dtype.is_complex:
        return NotImplemented
    if isinstance(value, (torch.SymInt, Value)):
        return c.emit("Expand", c.tensor(value, c.dtype), c.sizes(c.shape))
    proto = tensor_proto(torch.full((1,), value, dtype=c.dtype))
    return c.emit("ConstantOfShape", c.sizes(c.shape), value=proto)


# What is empty is zero: a captured graph has no other memory to show.
@translates("zeros", "empty.memory_format")
def zeros(c: Emitter, *args: Any, **kwargs: Any) -> Any:
    return _filled(c, 0)


# These take a device from a tensor, or one that is said on purpose; for the others the CPU is what nobody asked for.
@translates("zeros_like", "new_zeros", "empty_like", "new_empty")
def zeros_like(c: Emitter, like: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.elsewhere() else _filled(c, 0)


@translates("ones")
def ones(c: Emitter, *args: Any, **kwargs: Any) -> Any:
    return _filled(c, 1)


@translates("ones_like", "new_ones")
def ones_like(c: Emitter, like: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.elsewhere() else _filled(c, 1)


@translates("full")
def full(c: Emitter, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    return _filled(c, fill_value)


@translates("full_like", "new_full")
def full_like(c: Emitter, like: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.elsewhere() else _filled(c, kwargs["fill_value"] if "fill_value" in kwargs else args[-1])


# The gradient of what is filled is zero, not absent: an operator whose result did not depend on it would lose that.
@translates("fill.Scalar", "fill.Tensor", "zero")
def fill(c: Emitter, like: Value, value: Any = 0) -> Any:
    if c.elsewhere():
        return NotImplemented
    if c.has_history() and not c.dtype.is_complex:
        return c.emit("Where", c.tensor(False, torch.bool), like, c.tensor(value, c.dtype))
    return _filled(c, value)


@translates("scalar_tensor")
def scalar_tensor(c: Emitter, s: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.dtype.is_complex else c.tensor(s, c.dtype)


@translates("arange", "arange.start", "arange.start_step")
def arange(c: Emitter, *bounds: Any, start: Any = 0, end: Any = None, step: Any = 1, **kwargs: Any) -> Any:
    if c.dtype in _HALVES:
        return NotImplemented
    if len(bounds) == 1:
        end = bounds[0]
    elif bounds:
        start, end, step = (*bounds, step)[:3] if len(bounds) == 2 else bounds
    bounds = (start, end, step)
    if c.dtype == torch.float32 and any(isinstance(b, float) and not b.is_integer() for b in bounds):
        # As torch does, in double precision: the bounds' rounding may change how many steps there are.
        doubles = [c.tensor(b, torch.float64) for b in bounds]
        return c.cast(c.helper("Range", doubles, torch.float64, c.shape), c.dtype)
    return c.emit("Range", *(c.tensor(b, c.dtype) for b in bounds))


@translates("linspace")
def linspace(c: Emitter, start: Any, end: Any, steps: Any, **kwargs: Any) -> Any:
    known = all(type(v) in (int, float) for v in (start, end)) and type(steps) is int and steps <= _MOST_POINTS
    if not known or c.out.device.type != "cpu" or c.elsewhere() or c.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return c.const(torch.linspace(start, end, steps, dtype=c.dtype).tolist(), c.dtype)


@translates("eye", "eye.m")
def eye(c: Emitter, n: Any, m: Any = None, **kwargs: Any) -> Any:
    if c.dtype.is_complex or c.dtype == torch.bool:
        return NotImplemented
    proto = tensor_proto(torch.zeros(1, dtype=c.dtype))
    return c.emit("EyeLike", c.helper("ConstantOfShape", [c.sizes(c.shape)], c.dtype, c.shape, value=proto))


@translates("rand_like")
def rand_like(c: Emitter, self: Value, **kwargs: Any) -> Any:
    if c.dtype not in (torch.float32, torch.float64) or kwargs.get("generator") is not None:
        return NotImplemented
    return c.emit("RandomUniformLike", self, dtype=1 if c.dtype == torch.float32 else 11)


def filled_vector(c: Emitter, value: float, sizes: Sequence[Any], dtype: torch.dtype) -> Value:
    """A constant-filled intermediate tensor, such as the missing scale of a normalization."""
    shape = [s if isinstance(s, str) else c.dim(s) for s in sizes]
    proto = tensor_proto(torch.tensor([value]).to(dtype))
    return c.helper("ConstantOfShape", [c.sizes(shape)], dtype, shape, value=proto)

"""What asks for or replaces special numbers, and bounds: isnan, nan_to_num, clamp, fmax and their like.

Written with the comparisons that fused kernels have; a comparison with NaN is false.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .reduce import reduced


def _number_test(name: str, otherwise: bool) -> Any:
    """Registers a test of floating-point numbers; integers give `otherwise`."""

    def register(write: Any) -> Any:
        @translates(name)
        def translate(c: Emitter, self: Value) -> Any:
            if self.dtype.is_floating_point:
                return write(c, self)
            return c.emit("Expand", c.const(otherwise, torch.bool), c.sizes(c.shape))

        return write

    return register


@_number_test("isnan", False)
def isnan(c: Emitter, x: Value) -> Value:
    return c.emit("Not", c.helper("Equal", [x, x], torch.bool, x.shape))


@_number_test("isinf", False)
def isinf(c: Emitter, x: Value) -> Value:
    return c.emit("Equal", c.helper("Abs", [x], x.dtype, x.shape), c.const(math.inf, x.dtype))


@_number_test("isfinite", True)
def isfinite(c: Emitter, x: Value) -> Value:
    return c.emit("Less", c.helper("Abs", [x], x.dtype, x.shape), c.const(math.inf, x.dtype))


@translates("nan_to_num")
def nan_to_num(
    c: Emitter, self: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    if not self.dtype.is_floating_point:
        return self
    limits = torch.finfo(self.dtype)
    f = Formula(c)
    x = f("Where", f.compare("Equal", self, self), self, 0.0 if nan is None else nan)
    x = f("Where", f.compare("Equal", self, math.inf), limits.max if posinf is None else posinf, x)
    return f.result("Where", f.compare("Equal", self, -math.inf), limits.min if neginf is None else neginf, x)


@translates("nansum")
def nansum(c: Emitter, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if self.dtype != c.dtype or not self.dtype.is_floating_point:
        return NotImplemented
    f = Formula(c)
    return reduced(c, "ReduceSum", f("Where", f.compare("Equal", self, self), self, 0), dim, keepdim)


@translates("clamp", "clip")
def clamp(c: Emitter, self: Value, min: Any = None, max: Any = None) -> Any:
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (min, max)):
        return NotImplemented  # torch 2.11 passes over one that stands alone, later ones give NaN
    bounds = [None if bound is None else c.tensor(bound, c.dtype) for bound in (min, max)]
    return c.emit("Clip", c.cast(self, c.dtype), *bounds)


@translates("clamp_min")
def clamp_min(c: Emitter, self: Value, min: Any) -> Any:
    return clamp(c, self, min)


@translates("clamp_max")
def clamp_max(c: Emitter, self: Value, max: Any) -> Any:
    return clamp(c, self, None, max)


@translates("clamp.Tensor", "clip.Tensor")
def clamp_by_tensors(c: Emitter, self: Value, min: Value | None = None, max: Value | None = None) -> Any:
    if c.dtype == torch.bool:
        return NotImplemented
    f = Formula(c)
    x, low, high = (None if v is None else c.cast(v, c.dtype) for v in (self, min, max))
    value = x if low is None else f("Max", x, low)
    value = value if high is None else f("Min", value, high)
    if not c.dtype.is_floating_point:
        return value
    # The gradient goes to one of the three or, where the bounds are equal or have crossed, as torch has it.
    parts = []
    inside = [f.compare(op, x, b) for op, b in (("GreaterOrEqual", low), ("LessOrEqual", high)) if b is not None]
    parts.append(f("Where", inside[0] if len(inside) == 1 else f.compare("And", *inside), x, 0))
    if low is not None:
        below = f.compare("Less", x, low)
        below = below if high is None else f.compare("And", f.compare("Less", low, high), below)
        parts.append(f("Where", below, low, 0))
    if high is not None:
        above = f.compare("Greater", x, high)
        above = above if low is None else f.compare("Or", above, f.compare("Less", high, low))
        parts.append(f("Where", above, high, 0))
    tangent = f("Add", parts[0], parts[1])
    tangent = tangent if len(parts) == 2 else f("Add", tangent, parts[2])
    return f.result("WithValue", value, tangent, domain=ORTMODULE)


@translates("clamp_min.Tensor")
def clamp_min_by_tensor(c: Emitter, self: Value, min: Value) -> Any:
    return clamp_by_tensors(c, self, min)


@translates("clamp_max.Tensor")
def clamp_max_by_tensor(c: Emitter, self: Value, max: Value) -> Any:
    return clamp_by_tensors(c, self, None, max)


def _extreme_number(name: str, comparison: str) -> None:
    """The greater or the less of two, of which a NaN counts as missing; of equals the first."""

    @translates(name)
    def translate(c: Emitter, self: Value, other: Value) -> Any:
        if not c.dtype.is_floating_point:
            return NotImplemented
        f = Formula(c)
        a, b = c.cast(self, c.dtype), c.cast(other, c.dtype)
        first = f.compare("Or", f.compare(comparison, a, b), f.compare("Not", f.compare("Equal", b, b)))
        return f.result("Where", first, a, b)


_extreme_number("fmax", "GreaterOrEqual")
_extreme_number("fmin", "LessOrEqual")

"""Activations.

Where ONNX has none of the same gradient they are compositions: what passes at a kink, and for NaN, is torch's.
"""

from __future__ import annotations

from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates
from .shape import axis_of


@translates("hardtanh")
def hardtanh(c: Emitter, self: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    # Not Clip: at the bounds hardtanh has no gradient and clamp has one.
    return c.emit("HardTanh", self, domain=ORTMODULE, min_val=float(min_val), max_val=float(max_val))


@translates("relu6")
def relu6(c: Emitter, self: Value) -> Value:
    return hardtanh(c, self, 0, 6)


@translates("gelu")
def gelu(c: Emitter, self: Value, approximate: str = "none") -> Value:
    return c.emit("Gelu", self, approximate=approximate)


@translates("softplus")
def softplus(c: Emitter, self: Value, beta: Any = 1, threshold: Any = 20) -> Any:
    if (beta, threshold) == (1, 20):
        return c.emit("Softplus", self)
    if c.dtype == torch.float64 and threshold > 20:  # the operator is linear above 20
        return NotImplemented
    f = Formula(c, wide=True)
    scaled = f("Mul", self, beta)
    curved = f("Div", f("Softplus", scaled), beta)
    return f.result("Where", f.compare("Greater", scaled, threshold), self, curved)


@translates("log_sigmoid")
def log_sigmoid(c: Emitter, self: Value) -> Value:
    # Zero less the softplus: its negative would be a negative zero far above, where torch has none.
    negative = c.helper("Neg", [self], c.dtype, c.shape)
    return c.emit("Sub", c.const(0.0, c.dtype), c.helper("Softplus", [negative], c.dtype, c.shape))


@translates("leaky_relu")
def leaky_relu(c: Emitter, self: Value, negative_slope: Any = 0.01) -> Value:
    return c.emit("LeakyRelu", self, alpha=float(negative_slope))


@translates("elu")
def elu(c: Emitter, self: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return c.emit("Elu", self, alpha=float(alpha)) if (scale, input_scale) == (1, 1) else NotImplemented


@translates("celu")
def celu(c: Emitter, self: Value, alpha: Any = 1.0) -> Any:
    return c.emit("Celu", self, alpha=float(alpha)) if alpha != 0 else NotImplemented


@translates("selu")
def selu(c: Emitter, self: Value) -> Any:
    if c.dtype != torch.float64:
        return c.emit("Selu", self)
    # The operator's numbers are floats.
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    f = Formula(c)
    bent = f.compare("LessOrEqual", self, 0)
    below = f("Mul", f("Expm1", f("Where", bent, self, 0), domain=ORTMODULE), scale * alpha)
    return f.result("Where", bent, below, f("Mul", self, scale))


@translates("mish")
def mish(c: Emitter, self: Value) -> Value:
    return c.emit("Mish", self)


@translates("prelu")
def prelu(c: Emitter, self: Value, weight: Value) -> Any:
    if weight.rank > 1:
        return NotImplemented
    if weight.rank == 1 and self.rank > 2 and weight.shape[0] != 1:  # one per channel, the second axis
        behind = list(range(1, self.rank - 1))
        weight = c.helper("Unsqueeze", [weight, c.sizes(behind)], weight.dtype, (*weight.shape, *[1] * len(behind)))
    elif weight.rank > self.rank:
        weight = c.helper("Squeeze", [weight, c.sizes([0])], weight.dtype, ())
    return c.emit("PRelu", self, weight)


@translates("hardsigmoid")
def hardsigmoid(c: Emitter, self: Value) -> Value:
    f = Formula(c, wide=True)
    inside = f.compare("And", f.compare("Greater", self, -3), f.compare("Less", self, 3))
    flat = f("Clip", f("StopGradient", self, domain=ORTMODULE), -3, 3)
    return f.result("Div", f("Add", f("Where", inside, self, flat), 3), 6)


@translates("softshrink")
def softshrink(c: Emitter, self: Value, lambd: Any = 0.5) -> Value:
    f = Formula(c, wide=True)
    small = f.compare("LessOrEqual", f("Abs", self), lambd)
    nearer = f("Add", self, f("Where", f.compare("Greater", self, 0), -lambd, lambd))
    return f.result("Where", small, 0, nearer)


@translates("hardshrink")
def hardshrink(c: Emitter, self: Value, lambd: Any = 0.5) -> Value:
    f = Formula(c)
    return f.result("Where", f.compare("LessOrEqual", f("Abs", self), lambd), 0, self)


@translates("threshold")
def threshold(c: Emitter, self: Value, threshold: Any, value: Any) -> Any:
    if not self.dtype.is_floating_point:
        return NotImplemented
    f = Formula(c)
    return f.result("Where", f.compare("LessOrEqual", self, threshold), value, self)


@translates("glu")
def glu(c: Emitter, self: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, self.rank)
    halves = [c.builder.value(f"{c.name}.half", self.dtype, c.shape) for _ in range(2)]
    c.builder.node("Split", [self], halves, axis=axis, num_outputs=2)
    f = Formula(c, wide=True)
    return f.result("Mul", halves[0], f("Sigmoid", halves[1]))

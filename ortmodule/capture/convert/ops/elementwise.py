"""Elementwise operators: arithmetic, comparison, logic, functions and dtype conversion. Not here: activation.py.

ONNX operators take operands of one type, so torch's promotion becomes Casts. Python scalars become 0-d constants.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from ..emitter import Emitter
from ..formula import Formula
from ..onnx_graph import ORTMODULE, Value
from ..registry import translates

_ARITHMETIC = {"mul": "Mul", "div": "Div", "true_divide": "Div", "multiply": "Mul", "divide": "Div"}
_COMPARISON = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_COMPARISON |= {"less": "Less", "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual"}
_LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
_BITWISE = {
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "bitwise_xor": "Xor",
    "__and__": "And",
    "__or__": "Or",
    "__xor__": "Xor",
}
_UNARY = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "neg": "Neg",
    "abs": "Abs", "cos": "Cos", "sin": "Sin", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "negative": "Neg",
    "reciprocal": "Reciprocal", "sign": "Sign", "hardswish": "HardSwish", "silu": "Silu", "rsqrt": "Rsqrt",
    "expm1": "Expm1", "log1p": "Log1p", "log2": "Log2", "log10": "Log10", "exp2": "Exp2", "round": "Round",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "arcsinh": "Asinh",
    "arccosh": "Acosh", "arctanh": "Atanh", "special_expit": "Sigmoid", "special_erf": "Erf", "special_exp2": "Exp2",
    "sgn": "Sign", "special_expm1": "Expm1", "special_log1p": "Log1p",
}  # fmt: skip
_XLOGY = {
    "xlogy": (".Tensor", ".Scalar_Self", ".Scalar_Other"),
    "special_xlogy": ("", ".self_scalar", ".other_scalar"),
}
_OWN_UNARY = {"Silu", "Rsqrt", "Expm1", "Log1p", "Log2", "Log10", "Exp2"}


@functools.cache
def _promoted(a: torch.dtype, a_rank: bool, b: torch.dtype, b_rank: bool) -> torch.dtype:
    return torch.result_type(torch.empty([1] * a_rank, dtype=a), torch.empty([1] * b_rank, dtype=b))


def common_dtype(a: Any, b: Any) -> torch.dtype:
    """The dtype in which torch combines two operands, each a Value, a number or a symbolic size."""
    if isinstance(a, Value) and isinstance(b, Value):
        return _promoted(a.dtype, a.rank > 0, b.dtype, b.rank > 0)
    value, scalar = (a, b) if isinstance(a, Value) else (b, a)
    kind = bool if isinstance(scalar, bool) else float if isinstance(scalar, float) else int
    return torch.result_type(torch.empty([1] * (value.rank > 0), dtype=value.dtype), kind(1))


def _arithmetic(c: Emitter, op: str, a: Any, b: Any, domain: str = "", wide: bool = False) -> Value:
    dtype = c.opmath(a, b, 0.1 if wide else 0)
    return c.emit(op, c.tensor(a, dtype), c.tensor(b, dtype), compute=dtype, domain=domain)


def _sum(c: Emitter, op: str, a: Any, b: Any, alpha: Any) -> Any:
    if c.dtype == torch.bool or isinstance(alpha, torch.SymInt):
        return NotImplemented
    if alpha == 1:
        return _arithmetic(c, op, a, b)
    dtype = c.opmath(a, b, alpha, 0.1)
    scaled = c.tensor(b, dtype)
    scaled = c.helper("Mul", [scaled, c.const(alpha, dtype)], dtype, scaled.shape)
    return c.emit(op, c.tensor(a, dtype), scaled, compute=dtype)


@translates("add.Tensor", "add.Scalar")
def add(c: Emitter, self: Any, other: Any, alpha: Any = 1) -> Any:
    return _sum(c, "Add", self, other, alpha)


@translates("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def sub(c: Emitter, self: Any, other: Any, alpha: Any = 1) -> Any:
    return _sum(c, "Sub", self, other, alpha)


@translates("rsub.Tensor", "rsub.Scalar")
def rsub(c: Emitter, self: Any, other: Any, alpha: Any = 1) -> Any:
    return _sum(c, "Sub", other, self, alpha) if alpha == 1 else NotImplemented


def _binary(name: str, op: str) -> None:
    def translate(c: Emitter, self: Any, other: Any) -> Any:
        if c.dtype == torch.bool:
            return (
                c.emit("And", self, c.tensor(other, torch.bool))
                if op == "Mul" and self.dtype == torch.bool
                else NotImplemented
            )
        return _arithmetic(c, op, self, other)

    translates(f"{name}.Tensor", f"{name}.Scalar")(translate)


def _comparison(name: str, op: str, negate: bool = False) -> None:
    def translate(c: Emitter, self: Any, other: Any) -> Value:
        dtype = common_dtype(self, other)
        if dtype == torch.bool and op != "Equal":
            dtype = torch.int32
        a, b = c.tensor(self, dtype), c.tensor(other, dtype)
        if not negate:
            return c.emit(op, a, b, compute=torch.bool)
        return c.emit("Not", c.helper(op, [a, b], torch.bool, c.shape), compute=torch.bool)

    translates(f"{name}.Tensor", f"{name}.Scalar")(translate)


def _unary(name: str, op: str) -> None:
    def translate(c: Emitter, self: Value) -> Any:
        if not self.dtype.is_floating_point and op in ("Floor", "Ceil", "Round"):
            return self
        if c.dtype == torch.bool:
            return NotImplemented
        return c.emit(op, c.cast(self, c.dtype), domain=ORTMODULE if op in _OWN_UNARY else "")

    translates(name)(translate)


for _name, _op in _ARITHMETIC.items():
    _binary(_name, _op)
for _name, _op in _COMPARISON.items():
    _comparison(_name, _op)
for _name in ("ne", "not_equal"):
    _comparison(_name, "Equal", negate=True)
for _name, _op in _UNARY.items():
    _unary(_name, _op)


@translates("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode")
def div_mode(c: Emitter, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "trunc":
        if c.dtype.is_floating_point:
            f = Formula(c, wide=True)
            whole = _towards_zero(f, f("Div", self, other))
            # Its gradient is zero also where that of the quotient is no number.
            flat = [f("Floor", x) for x in (self, other) if isinstance(x, Value)]
            flat = flat if len(flat) == 1 else [f("Add", *flat)]
            return f.result("WithValue", whole, *flat, domain=ORTMODULE)
        return _arithmetic(c, "Div", self, other)  # of integers, in ONNX, it rounds towards zero
    return floor_divide(c, self, other) if rounding_mode == "floor" else _arithmetic(c, "Div", self, other)


def _towards_zero(f: Formula, x: Value) -> Value:
    return f("Where", f.compare("Less", x, 0), f("Ceil", x), f("Floor", x))


@translates("trunc", "fix")
def trunc(c: Emitter, self: Value) -> Any:
    return _towards_zero(Formula(c), c.cast(self, c.dtype)) if self.dtype.is_floating_point else self


@translates("frac")
def frac(c: Emitter, self: Value) -> Any:
    if not self.dtype.is_floating_point:
        return NotImplemented
    f = Formula(c)
    return f.result("Sub", self, _towards_zero(f, self))


def _angle(name: str, factor: float) -> None:
    def translate(c: Emitter, self: Value) -> Any:
        return Formula(c, wide=True).result("Mul", self, factor)

    translates(name)(translate)


_angle("deg2rad", math.pi / 180)
_angle("rad2deg", 180 / math.pi)


@translates("floor_divide", "floor_divide.Scalar")
def floor_divide(c: Emitter, self: Any, other: Any) -> Value:
    return _arithmetic(c, "FloorDiv", self, other, ORTMODULE)


@translates("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(c: Emitter, self: Any, other: Any) -> Any:
    if c.dtype == torch.bool:
        return NotImplemented
    if not c.dtype.is_floating_point:
        return _arithmetic(c, "Mod", self, other)
    # Of floats ONNX has only the remainder with the dividend's sign. One of the other sign is a divisor away.
    f = Formula(c)
    divisor = c.tensor(other, c.dtype)
    rest = f("Mod", self, divisor, fmod=1)
    if isinstance(other, (int, float)):
        wrong = f.compare("Less" if other > 0 else "Greater", rest, 0)
    else:
        signs = f.compare("Xor", f.compare("Less", rest, 0), f.compare("Less", divisor, 0))
        wrong = f.compare("And", signs, f.compare("Not", f.compare("Equal", rest, 0)))
    return f.result("Where", wrong, f("Add", rest, divisor), rest)


@translates("fmod.Tensor", "fmod.Scalar")
def fmod(c: Emitter, self: Value, other: Any) -> Any:
    if c.dtype == torch.bool:
        return NotImplemented
    return c.emit("Mod", c.cast(self, c.dtype), c.tensor(other, c.dtype), fmod=1)


def _own_binary(op: str, *names: str) -> None:
    def translate(c: Emitter, self: Any, other: Any) -> Value:
        return c.emit(op, c.tensor(self, c.dtype), c.tensor(other, c.dtype), domain=ORTMODULE)

    translates(*names)(translate)


_own_binary("Atan2", "atan2", "arctan2")
_own_binary("Hypot", "hypot")
_own_binary("LogAddExp", "logaddexp")
_own_binary("XLogY", *(f"{n}{o}" for n in ("xlogy", "special_xlogy") for o in _XLOGY[n]))


@translates("lerp.Scalar", "lerp.Tensor")
def lerp(c: Emitter, self: Value, end: Value, weight: Any) -> Value:
    # From the nearer end, as torch computes it.
    f = Formula(c, wide=True)
    apart = f("Sub", end, self)
    if isinstance(weight, (int, float)):
        if abs(weight) < 0.5:
            return f.result("Add", self, f("Mul", apart, weight))
        return f.result("Sub", end, f("Mul", apart, 1 - weight))
    near = f.compare("Less", f("Abs", weight), 0.5)
    share = f("Where", near, weight, f("Sub", weight, 1))
    return f.result("Add", f("Where", near, self, end), f("Mul", apart, share))


def _add_scaled(name: str, op: str) -> None:
    def translate(c: Emitter, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
        f = Formula(c, wide=True)
        scaled = tensor1 if value == 1 else f("Mul", tensor1, value)
        return f.result("Add", self, f(op, scaled, tensor2))

    translates(name)(translate)


_add_scaled("addcmul", "Mul")
_add_scaled("addcdiv", "Div")


@translates("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def pow_(c: Emitter, self: Any, exponent: Any) -> Any:
    if c.dtype == torch.bool:
        return NotImplemented
    if isinstance(exponent, (int, float)) and exponent == 2:
        return square(c, self)
    return _arithmetic(c, "Pow", self, exponent)


@translates("square")
def square(c: Emitter, self: Value) -> Value:
    x = c.cast(self, c.dtype)
    return c.emit("Mul", x, x)


@translates("minimum", "min.other")
def minimum(c: Emitter, self: Value, other: Value) -> Any:
    return NotImplemented if c.dtype == torch.bool else _arithmetic(c, "Min", self, other)


@translates("maximum", "max.other")
def maximum(c: Emitter, self: Value, other: Value) -> Any:
    return NotImplemented if c.dtype == torch.bool else _arithmetic(c, "Max", self, other)


def _logic(name: str, op: str, bitwise: bool) -> None:
    def translate(c: Emitter, self: Any, other: Any) -> Value:
        if bitwise and c.dtype != torch.bool:
            return c.emit(f"Bitwise{op}", c.tensor(self, c.dtype), c.tensor(other, c.dtype))
        return c.emit(op, c.tensor(self, torch.bool), c.tensor(other, torch.bool), compute=torch.bool)

    translates(*([f"{name}.Tensor", f"{name}.Scalar"] if bitwise else [name]))(translate)


for _name, _op in _LOGIC.items():
    _logic(_name, _op, bitwise=False)
for _name, _op in _BITWISE.items():
    _logic(_name, _op, bitwise=True)


@translates("logical_not")
def logical_not(c: Emitter, self: Value) -> Value:
    return c.emit("Not", c.cast(self, torch.bool), compute=torch.bool)


@translates("bitwise_not")
def bitwise_not(c: Emitter, self: Value) -> Value:
    return c.emit("Not" if c.dtype == torch.bool else "BitwiseNot", self)


@translates("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(c: Emitter, condition: Value, self: Any, other: Any) -> Value:
    return c.emit("Where", c.cast(condition, torch.bool), c.tensor(self, c.dtype), c.tensor(other, c.dtype))


@translates("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Emitter, self: Value, mask: Value, value: Any) -> Value:
    return c.emit("Where", c.cast(mask, torch.bool), c.tensor(value, c.dtype), c.cast(self, c.dtype))


@translates("detach")
def detach(c: Emitter, self: Value) -> Value:
    return c.emit("StopGradient", self, domain=ORTMODULE)


@translates("ortmodule::with_value")
def with_value(c: Emitter, self: Value, value: Value) -> Value:
    return c.emit("WithValue", value, self, domain=ORTMODULE)


@translates("alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "lift")
def same_value(c: Emitter, self: Value, *args: Any, **kwargs: Any) -> Value:
    return self


@translates("to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as", "to.prim_dtype")
def to(c: Emitter, self: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.changes_device() else c.cast(self, c.dtype, c.name)


# Those of capture/autocast.py.
@translates("_to_copy")
def autocast_to(c: Emitter, self: Value, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if c.changes_device() else c.cast(self, c.dtype, c.name, by_autocast=True)

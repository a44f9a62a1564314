"""Rows of the operators that change element types: casts, bits and quantization."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from onnx import TensorProto

from ..table import Case, Row, rand


def cast_like(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return x.to(target.dtype) * 1 if target.dtype.is_floating_point else x.to(target.dtype)


def cast_like_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(2, 3, dtype=dtype, low=-4, high=4)
    wide = torch.float64 if dtype != torch.float64 else torch.float32
    kinds = (dtype, wide, torch.bfloat16, torch.int32, torch.bool)
    return [Case((x, torch.zeros(2).to(k)), smooth=k == dtype) for k in kinds] + [
        Case((rand(3, dtype=torch.int32), x), smooth=False)
    ]


def cast_all(*xs: torch.Tensor, to: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(to) for x in xs)


def cast_all_cases(dtype: torch.dtype) -> list[Case]:
    xs = (rand(2, 3, dtype=dtype), rand(4, dtype=dtype), rand(dtype=dtype))
    return [Case(xs, {"to": kind}, outputs=3) for kind in (torch.float32, torch.bfloat16)]


BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def bit_cast_cases(dtype: torch.dtype) -> list[Case]:
    codes = torch.tensor([-128, -1, 0, 1, 127], dtype=torch.int8)
    return [
        Case((rand(2, 3, dtype=dtype),), {"to": BITS[dtype]}),
        Case((rand(dtype=dtype),), {"to": BITS[dtype]}),
        Case((rand(2, 3, dtype=dtype).view(BITS[dtype]),), {"to": dtype}),
        Case((codes,), {"to": torch.uint8}),
    ]


def bit_shift(x: torch.Tensor, by: torch.Tensor, direction: str) -> torch.Tensor:
    bits = 8 * x.itemsize
    outside = (by < 0) | (by >= bits)
    steps = torch.where(outside, 0, by)
    if direction == "LEFT":
        return torch.where(outside, 0, x << steps)
    return torch.where(outside, torch.where(x < 0, -1, 0).to(x.dtype), x >> steps)


def bit_shift_cases(_: torch.dtype) -> list[Case]:
    out = []
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        x = torch.tensor([[0, 1, 100], [-1, -100, 7]]).to(kind)
        for by in ([0, 1, 3], [2], [-1, 8, 70]):
            steps = torch.tensor(by).to(kind)
            out += [Case((x, steps), {"direction": d}) for d in ("LEFT", "RIGHT")]
    return out


# -- quantization -----------------------------------------------------------------------------------------------------

INTEGERS = {
    TensorProto.UINT8: (0, 255, torch.uint8),
    TensorProto.INT8: (-128, 127, torch.int8),
    TensorProto.INT16: (-32768, 32767, torch.int16),
}
ELEMENTS = {torch.uint8: TensorProto.UINT8, torch.int8: TensorProto.INT8, torch.int16: TensorProto.INT16}


def spread(value: torch.Tensor, x: torch.Tensor, axis: int, block_size: int) -> torch.Tensor:
    if value.numel() == 1:
        return value.reshape(())
    if block_size:
        return value.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    return value.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


def quantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> torch.Tensor:
    kind = output_dtype or (TensorProto.UINT8 if zero is None else ELEMENTS[zero.dtype])
    low, high, stored = INTEGERS[kind]
    divided = x / spread(scale, x, axis, block_size)
    if precision:
        divided = (x.double() / spread(scale, x, axis, block_size).double()).to(torch.float64)
    y = divided.double().round()
    if zero is not None:
        y = y + spread(zero, x, axis, block_size)
    return y.clamp(low, high).to(stored)


def quantize_cases(dtype: torch.dtype) -> list[Case]:
    x = rand(4, 5, dtype=dtype, low=-40, high=40)
    one = torch.tensor(0.5, dtype=dtype)
    rows, columns = rand(4, dtype=dtype, low=0.2, high=1), rand(5, dtype=dtype, low=0.2, high=1)
    blocks = rand(4, 3, dtype=dtype, low=0.2, high=1)
    kinds = [Case((x, one), {"output_dtype": int(k)}) for k in INTEGERS]
    return [
        *kinds,
        Case((x, one)),
        Case((x, one, torch.tensor(128, dtype=torch.uint8))),
        Case((x, rows, rand(4, dtype=torch.int8, low=-9, high=9)), {"axis": 0}),
        Case((x, columns, rand(5, dtype=torch.int16, low=-9, high=9)), {"axis": -1}),
        Case((x, blocks, rand(4, 3, dtype=torch.uint8, low=0, high=9)), {"block_size": 2}),
        Case((x, rand(2, 5, dtype=dtype, low=0.2, high=1)), {"axis": 0, "block_size": 3}),
        Case((x, one), {"precision": torch.float64}),
        Case((x[:0], columns)),
        Case((x[0, 0], one, torch.tensor(3, dtype=torch.int8))),
    ]


def dequantize(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    wide = torch.float64 if scale.dtype == torch.float64 else torch.float32
    numbers = x.to(wide)
    if zero is not None:
        numbers = numbers - spread(zero.to(wide), x, axis, block_size)
    return (numbers * spread(scale.to(wide), x, axis, block_size)).to(output_dtype or scale.dtype)


def dequantize_cases(dtype: torch.dtype) -> list[Case]:
    def data(kind: torch.dtype) -> torch.Tensor:
        return rand(4, 5, dtype=kind, low=0, high=60)

    one, columns = torch.tensor(0.5, dtype=dtype), rand(5, dtype=dtype, low=0.2, high=1)
    return [
        Case((data(torch.uint8), one, torch.tensor(7, dtype=torch.uint8))),
        Case((data(torch.int32), one)),
        Case((data(torch.int16), torch.tensor([0.25], dtype=dtype), torch.tensor([3], dtype=torch.int16))),
        Case((data(torch.int8), columns, rand(5, dtype=torch.int8, low=-9, high=9))),
        Case((data(torch.int8), rand(4, dtype=dtype)), {"axis": -2}),
        Case((data(torch.uint8), rand(4, 3, dtype=dtype)), {"block_size": 2}),
        Case((data(torch.uint8), rand(2, 5, dtype=dtype), data(torch.uint8)[:2]), {"axis": 0, "block_size": 3}),
        Case(
            (rand(4, 5).to(torch.float8_e4m3fn).view(torch.int8), columns),
            {"output_dtype": torch.bfloat16},
            smooth=False,
        ),
    ]


def dynamic_quantize(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.float()
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = torch.where(high == low, torch.tensor(1.0), (high - low) / 255)
    zero = (-low / scale).clamp(0, 255).round()
    return ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def dynamic_quantize_cases(_: torch.dtype) -> list[Case]:
    tensors = [rand(3, 4), rand(5, low=1, high=2), rand(2, 2, low=-3, high=-1), torch.zeros(3), rand()]
    return [Case((x,), outputs=3) for x in tensors]


# -- products ---------------------------------------------------------------------------------------------------------


def column(value: torch.Tensor) -> torch.Tensor:
    return value.unsqueeze(-1) if value.dim() == 1 and value.numel() > 1 else value


def matmul_integer(
    a: torch.Tensor, b: torch.Tensor, a_zero: torch.Tensor | None = None, b_zero: torch.Tensor | None = None
) -> torch.Tensor:
    left = a.long() - (0 if a_zero is None else column(a_zero).long())
    right = b.long() - (0 if b_zero is None else b_zero.long())
    return (left.cpu() @ right.cpu()).int().to(left.device)  # GPUs have no product of integers


def integers(*shape: int, kind: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(0 if kind == torch.uint8 else -128, 256 if kind == torch.uint8 else 128, shape, dtype=kind)


def matmul_integer_cases(_: torch.dtype) -> list[Case]:
    signed = torch.int8
    zero = torch.tensor(9, dtype=torch.uint8)
    return [
        Case((integers(3, 4), integers(4, 2))),
        Case((integers(3, 4), integers(4, 2, kind=signed), zero, torch.tensor(-3, dtype=signed))),
        Case((integers(3, 4), integers(4, 2), integers(3), integers(2))),
        Case((integers(2, 3, 4), integers(2, 4, 5), integers(2, 3, 1), integers(2, 1, 5))),
        Case((integers(4), integers(4, 2), zero)),
        Case((integers(300), integers(300))),
    ]


def requantize(total: torch.Tensor, factor: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    info = torch.iinfo(zero.dtype)
    return ((total.double() * factor).round() + zero).clamp(info.min, info.max).to(zero.dtype)


def qlinear_matmul(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    a_zero: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
) -> torch.Tensor:
    factor = column(a_scale) * b_scale / y_scale
    return requantize(matmul_integer(a, b, a_zero, b_zero), factor, y_zero)


def qlinear_matmul_cases(_: torch.dtype) -> list[Case]:
    scale, zero = torch.tensor(0.02), torch.tensor(9, dtype=torch.uint8)
    signed = torch.tensor(-3, dtype=torch.int8)
    return [
        Case((integers(3, 4), scale, zero, integers(4, 2), scale, zero, torch.tensor(0.07), zero)),
        Case(
            (integers(3, 4), rand(3, low=0.01, high=0.03), integers(3))
            + (integers(4, 2, kind=torch.int8), rand(2, low=0.01, high=0.03), integers(2, kind=torch.int8))
            + (torch.tensor([0.07]), signed.reshape(1))
        ),
        Case((integers(2, 3, 4), scale, zero, integers(2, 4, 5), scale, zero, torch.tensor(0.3), signed)),
    ]


def conv_sum(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, **attributes: Any) -> torch.Tensor:
    pads = attributes.get("pads", [0] * 4)
    x = F.pad(x.double(), (pads[1], pads[3], pads[0], pads[2]))
    stride, dilation = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    b = None if bias is None else bias.double()
    return F.conv2d(x, w.double(), b, stride, 0, dilation, attributes.get("group", 1))


def filter_zero(zero: torch.Tensor | None) -> torch.Tensor | int:
    return 0 if zero is None else zero.int().reshape(-1, 1, 1, 1) if zero.dim() else zero.int()


def conv_integer(
    x: torch.Tensor,
    w: torch.Tensor,
    x_zero: torch.Tensor | None = None,
    w_zero: torch.Tensor | None = None,
    **attributes: Any,
) -> torch.Tensor:
    data = x.int() - (0 if x_zero is None else x_zero.int())
    return conv_sum(data, w.int() - filter_zero(w_zero), **attributes).int()


def conv_integer_cases(_: torch.dtype) -> list[Case]:
    zero = torch.tensor(9, dtype=torch.uint8)
    x = integers(2, 2, 5, 6)
    return [
        Case((x, integers(4, 2, 3, 2))),
        Case((x, integers(4, 2, 3, 2), zero, zero), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        Case((x, integers(4, 1, 2, 2), zero, integers(4)), {"group": 2, "dilations": [1, 2]}),
        Case((x, integers(4, 2, 3, 2, kind=torch.int8), zero, torch.tensor(-4, dtype=torch.int8))),
    ]


def qlinear_conv(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    x_zero: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor,
    y_scale: torch.Tensor,
    y_zero: torch.Tensor,
    bias: torch.Tensor | None = None,
    **attributes: Any,
) -> torch.Tensor:
    total = conv_sum(x.int() - x_zero.int(), w.int() - filter_zero(w_zero), bias, **attributes)
    scales = w_scale.reshape(-1, 1, 1) if w_scale.dim() else w_scale
    return requantize(total, x_scale * scales / y_scale, y_zero)


def qlinear_conv_cases(_: torch.dtype) -> list[Case]:
    scale, zero = torch.tensor(0.02), torch.tensor(9, dtype=torch.uint8)
    x, bias = integers(2, 2, 5, 6), torch.tensor([100, -200, 0, 5000], dtype=torch.int32)
    signed = torch.tensor(-3, dtype=torch.int8)
    return [
        Case((x, scale, zero, integers(4, 2, 3, 2), scale, zero, torch.tensor(0.2), zero)),
        Case(
            (x, scale, zero, integers(4, 2, 3, 2), scale, zero, torch.tensor(0.2), signed, bias),
            {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        ),
        Case(
            (x, scale, zero, integers(4, 1, 2, 2, kind=torch.int8), rand(4, low=0.01, high=0.03))
            + (integers(4, kind=torch.int8), torch.tensor(0.2), zero, bias),
            {"group": 2, "dilations": [1, 2]},
        ),
    ]


FIXED: dict[str, Any] = {"differentiable": False, "bfloat16": False}

ROWS = [
    Row("CastLike", cast_like, cast_like_cases),
    Row("CastAll", cast_all, cast_all_cases, "ai.ortmodule", differentiable=False),
    Row("BitCast", lambda x, to: x.view(to), bit_cast_cases, differentiable=False, opset=26),
    Row("BitShift", bit_shift, bit_shift_cases, **FIXED),
    Row("QuantizeLinear", quantize, quantize_cases, differentiable=False),
    Row("DequantizeLinear", dequantize, dequantize_cases, grads=(1,)),
    Row("DynamicQuantizeLinear", dynamic_quantize, dynamic_quantize_cases, **FIXED),
    Row("MatMulInteger", matmul_integer, matmul_integer_cases, **FIXED),
    Row("QLinearMatMul", qlinear_matmul, qlinear_matmul_cases, **FIXED),
    Row("ConvInteger", conv_integer, conv_integer_cases, **FIXED, no_forms=("size 2 as 0",)),
    Row("QLinearConv", qlinear_conv, qlinear_conv_cases, **FIXED, refuses=True, no_forms=("size 2 as 0",)),
]

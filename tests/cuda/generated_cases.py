"""Programs as generated kernels: every instruction, every way in which operands lie, rows that are held and too long.

The reference is torch's operator for each instruction (tests/ops/samples/fused.py), for dropout the CPU's interpreter.
Each source is compiled once and kept in build/generated. Not here: how a case is run (cases.py), what the fusion pass
makes of models (test_generated.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..ops.samples.fused import fused
from .cases import Case, Operands, run

OWN = "ai.ortmodule"
BINARY = "add sub mul div min max less less_equal greater greater_equal equal".split()
GRADIENTS = "gelu_grad gelu_tanh_grad silu_grad tanh_grad sigmoid_grad".split()
UNARY = "neg abs exp tanh erf sigmoid relu gelu gelu_tanh silu round_bfloat16 round_half".split()
POSITIVE = "sqrt rsqrt reciprocal log".split()

Operand = Callable[[torch.dtype], torch.Tensor]


def uniform(*shape: int, low: float = -3.0, high: float = 3.0) -> Operand:
    return lambda d: (torch.rand(*shape, dtype=torch.float64) * (high - low) + low).to(d)


def floats(*shape: int) -> Operand:
    return lambda d: uniform(*shape)(torch.float32)


FIRST_WORD = 1768098052  # of the state below and stream 5


def state(_: torch.dtype) -> torch.Tensor:
    return torch.tensor([7654321, 1234567])


def case(
    name: str, operands: Sequence[Operand], program: list[str], outputs: list[str], rows: Sequence[int] = (),
    kernels: tuple[str, ...] = ("fused_*",), aligned: bool = False,
) -> Case:  # fmt: skip
    attributes = {"program": program, "outputs": outputs, "rows": list(rows)}

    def given(dtype: torch.dtype) -> Operands:
        return [make(dtype) for make in operands]

    def reference(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Dropout as a product with the mask that the CPU's interpreter makes."""
        known, lines = list(values), []
        for line in program:
            words = line.split()
            if words[2] == "philox_dropout":
                x, drawn = int(words[3][1:]), int(words[4][1:])
                ones = torch.ones(values[x].shape, dtype=torch.float32)
                known[drawn] = mask(ones, values[drawn].long(), " ".join(words[5:]))
                line = f"{words[0]} = mul %{x} %{drawn}"
            lines.append(line)
        return fused(*known, **{**attributes, "program": lines})

    return Case(
        f"Fused {name}", "FusedKernel", given, reference, kernels, OWN, attributes, wrt=(), outputs=len(outputs),
        aligned=aligned,
    )  # fmt: skip


def mask(ones: torch.Tensor, state: torch.Tensor, numbers: str) -> torch.Tensor:
    program = [f"%2 = philox_dropout %0 %1 {numbers}"]
    made = case("mask", [], program, ["full float %2"])
    return run(made, [ones, state], "cpu", aligned=True)[0]


def instructions() -> list[Case]:
    """All of them in two programs: values between 0.1 and 3, and of both signs."""
    lines, outputs = [], []
    for op in POSITIVE + UNARY:
        lines.append(f"%{2 + len(lines)} = {op} %0")
        outputs.append(f"full float %{1 + len(lines)}")
    positive = case("positive", [uniform(6, 40, low=0.1), uniform(6, 40)], lines, outputs[:])
    lines, outputs = [], []
    for op in BINARY + GRADIENTS:
        lines.append(f"%{2 + len(lines)} = {op} %0 %1")
        outputs.append(f"full float %{1 + len(lines)}")
    both = case("two operands", [uniform(5, 37), uniform(5, 37, low=0.5)], lines, outputs)
    lines = ["%2 = less %0 %1", "%3 = greater %1 %0", "%4 = and %2 %3", "%5 = or %2 %3", "%6 = xor %2 %3",
             "%7 = not %6", "%8 = where %7 %0 %1", "%9 = number 0.25", "%10 = mul %8 %9"]  # fmt: skip
    forms = ["full bool %4", "full bool %5", "full bool %6", "full bool %7", "full bfloat16 %10", "full float16 %10"]
    return [positive, both, case("booleans", [uniform(3, 48), uniform(3, 48)], lines, forms)]


def places() -> list[Case]:
    """How operands lie: along columns, rows and axes between, transposed, in parts of wider rows, channels last."""
    chain = ["%5 = add %0 %1", "%6 = mul %5 %2", "%7 = sub %6 %3", "%8 = mul %7 %4"]
    out = ["full float %8", "full bfloat16 %7"]
    made = []
    for width in (37, 64):

        def wide(d: torch.dtype, w: int = width) -> torch.Tensor:
            return uniform(4, 6, 3 * w)(d)[..., w : 2 * w]

        def turned(d: torch.dtype, w: int = width) -> torch.Tensor:
            return uniform(6, 4, w)(d).transpose(0, 1)

        operands = [wide, turned, floats(width), uniform(4, 1, width), uniform(1)]
        made.append(case(f"places {width}", operands, chain, out))
    pictures = [lambda d: uniform(2, 8, 5, 5)(d).contiguous(memory_format=torch.channels_last), uniform(8, 1, 1)]
    made.append(case("channels last", pictures, ["%2 = mul %0 %1", "%3 = relu %2"], ["full float %3"]))
    rows = ["%2 = add %0 %1", "%3 = exp %1", "%4 = mul %2 %3"]
    made.append(
        case("rows that are given", [uniform(6, 64), floats(6, 1)], rows, ["full float %4", "row float %3"], [1])
    )
    turn = ["%3 = mul %0 %1", "%4 = rotate_half %0", "%5 = mul %4 %2", "%6 = add %3 %5"]
    for width in (6, 64):
        tables = [uniform(2, 3, 5, width), floats(5, width), floats(5, width)]
        made.append(case(f"rotary {width}", tables, turn, ["full float %6"]))

        def heads(d: torch.dtype, w: int = width) -> torch.Tensor:
            return uniform(2, 5, 3, w)(d).transpose(1, 2)

        made.append(case(f"rotary {width} of heads inside", [heads, *tables[1:]], turn, ["full float %6"]))
    return made


# Dropout of %0 joined to %1, normalized with %2 and %3 as scale and bias.
NORM = ["%5 = philox_dropout %0 %4 0.25 3", "%6 = add %5 %1", "%7 = row_mean %6", "%8 = sub %6 %7", "%9 = mul %8 %8",
        "%10 = row_mean %9", "%11 = number 1e-05", "%12 = add %10 %11", "%13 = rsqrt %12", "%14 = mul %8 %13",
        "%15 = mul %14 %2", "%16 = add %15 %3"]  # fmt: skip
# dy, x, mean, rstd, scale and another gradient of x.
NORM_GRAD = ["%6 = sub %1 %2", "%7 = mul %6 %3", "%8 = mul %0 %4", "%9 = row_mean %8", "%10 = mul %8 %7",
             "%11 = row_mean %10", "%12 = sub %8 %9", "%13 = mul %7 %11", "%14 = sub %12 %13", "%15 = mul %3 %14",
             "%16 = add %15 %5", "%17 = mul %0 %7"]  # fmt: skip


def whole_rows() -> list[Case]:
    made = []
    for rows, width in ((5, 7), (9, 64), (3, 1024), (2, 4104), (2, 20000)):
        operands = [uniform(rows, width), floats(rows, width), uniform(width), floats(width)]
        made.append(case(f"norm {rows}x{width}", [*operands, state], NORM,
                         ["full float %16", "full float %6", "row float %7", "row_dropped float %13"]))  # fmt: skip
    for rows, width in ((5, 7), (300, 64), (3, 768), (2, 6000), (2, 40000)):
        operands = [uniform(rows, width), uniform(rows, width), floats(rows, 1), floats(rows, 1), uniform(width),
                    floats(rows, width)]  # fmt: skip
        made.append(case(f"norm gradient {rows}x{width}", operands, NORM_GRAD,
                         ["full float %16", "column float %17", "column_kept float %0"], [2, 3],
                         ("fused_*", "fused_*_total")))  # fmt: skip
    made.append(case("columns 70x3000", [uniform(70, 3000), floats(3000)], ["%2 = mul %0 %1", "%3 = relu %2"],
                     ["full float %3", "column float %2"], (), ("fused_*", "fused_*_total")))  # fmt: skip
    made.append(case("columns 3x5x17", [uniform(3, 5, 17)], ["%1 = mul %0 %0"], ["column float %1"], (),
                     ("fused_*", "fused_*_total")))  # fmt: skip
    return made


def draws() -> list[Case]:
    line = ["%2 = philox_dropout %0 %1 0.3 5"]
    made = [case(f"dropout {n}", [uniform(n), state], line, ["full float %2"]) for n in (64, 1000, 4096, 4101)]
    for word in (FIRST_WORD, FIRST_WORD + 1):  # of element 0: kept, and dropped
        drawn = [f"%2 = philox_dropout %0 %1 {word / 2**32!r} 5"]
        made.append(case(f"dropout at {word}", [uniform(64), state], drawn, ["full float %2"]))
    doubled = ["%2 = philox_dropout %0 %1 0.5 5", "%3 = row_sum %2"]
    made.append(case("dropout of rows", [lambda d: torch.ones(3, 192), state], doubled, ["row float %3"]))
    return made


def cases() -> list[Case]:
    return [*instructions(), *places(), *whole_rows(), *draws()]

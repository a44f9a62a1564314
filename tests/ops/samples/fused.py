"""Rows of FusedKernel and of what it is fed with: programs of every instruction, over rows, columns and broadcasts.

The reference is torch's own operator for each instruction, in float. What the fusion pass makes of real modules is in
tests/numbers/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..table import Case, Row, rand

OWN = "ai.ortmodule"
DTYPES = {"float": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "bool": torch.bool}


def _derivative(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def times(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            dy, x = torch.broadcast_tensors(dy, x.detach())
            x = x.clone().requires_grad_()
            return torch.autograd.grad(f(x), x, dy)[0]

    return times


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


INSTRUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "min": torch.minimum,
    "max": torch.maximum,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "equal": torch.eq,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "where": lambda c, x, y: torch.where(c != 0, x, y),
    "not": torch.logical_not,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "gelu_grad": _derivative(F.gelu),
    "gelu_tanh_grad": _derivative(_gelu_tanh),
    "silu_grad": _derivative(F.silu),
    "tanh_grad": lambda dy, y: dy * (1 - y * y),
    "sigmoid_grad": lambda dy, y: dy * y * (1 - y),
    "round_bfloat16": torch.Tensor.bfloat16,
    "round_half": torch.Tensor.half,
    "rotate_half": lambda x: torch.cat((-x[..., x.size(-1) // 2 :], x[..., : x.size(-1) // 2]), -1),
    "row_sum": lambda x: x.sum(-1, keepdim=True),
    "row_mean": lambda x: x.mean(-1, keepdim=True),
}


def fused(*inputs: torch.Tensor, program: list[str], outputs: list[str], rows: list[int]) -> tuple[torch.Tensor, ...]:
    values = [x.float() for x in inputs]
    for line in program:
        _, _, op, *rest = line.split()
        if op == "number":
            values.append(torch.tensor(float(rest[0])))
        else:
            values.append(INSTRUCTIONS[op](*[values[int(v[1:])] for v in rest]).float())
    space = torch.broadcast_shapes(*[x.shape for x in inputs])
    stored = []
    for form, dtype, value in (line.split() for line in outputs):
        y = values[int(value[1:])]
        if form == "full":
            y = y.expand(space)
        elif form == "row_dropped":
            y = y.squeeze(-1)
        elif form.startswith("column"):
            y = y.expand(space).sum(list(range(len(space) - 1)), keepdim=form == "column_kept")
        stored.append(y.to(DTYPES[dtype]))
    return tuple(stored)


def _case(inputs: Sequence[torch.Tensor], program: list[str], outputs: list[str], rows: Sequence[int] = ()) -> Case:
    attributes = {"program": program, "outputs": outputs, "rows": list(rows)}
    return Case(tuple(inputs), attributes, outputs=len(outputs))


def _unary(op: str, dtype: str = "float") -> tuple[list[str], list[str]]:
    return [f"%1 = {op} %0"], [f"full {dtype} %1"]


def fused_cases(_: torch.dtype) -> list[Case]:
    cases = []
    for op in ("not neg abs sqrt rsqrt reciprocal exp log tanh erf sigmoid relu gelu gelu_tanh silu").split():
        low = 0.1 if op in ("sqrt", "rsqrt", "log", "reciprocal") else -3.0
        x = rand(3, 37, low=low, high=3.0) if op != "not" else rand(3, 37, dtype=torch.bool)
        cases.append(_case([x], *_unary(op)))
    # Ties, what rounds to infinity, numbers below the normal ones, none.
    edges = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 3.39e38, 3e-8, 5e-8])
    edges = torch.cat([edges, 2.0 ** torch.arange(-30.0, 18) * 1.2345, torch.tensor([0.0, torch.inf, torch.nan])])
    for op in ("round_bfloat16", "round_half"):
        cases.append(_case([torch.cat([edges, -edges])], *_unary(op)))
        cases.append(_case([rand(3, 37, low=-3.0, high=3.0)], *_unary(op)))
    for op in "add sub mul div min max gelu_grad gelu_tanh_grad silu_grad tanh_grad sigmoid_grad".split():
        program = [f"%2 = {op} %0 %1", f"%3 = {op} %2 %0"] if op != "div" else [f"%2 = {op} %0 %1"]
        y = rand(3, 37, low=0.5, high=2.0)
        cases.append(_case([rand(3, 37), y], program, [f"full float %{1 + len(program)}"]))
    for op in "less less_equal greater greater_equal equal".split():
        x = rand(5, 20).round()
        cases.append(_case([x, rand(20).round()], [f"%2 = {op} %0 %1"], ["full bool %2"]))
    for op in "and or xor".split():
        bits = [rand(65, dtype=torch.bool), rand(65, dtype=torch.bool)]
        cases.append(_case(bits, [f"%2 = {op} %0 %1", "%3 = not %2"], ["full bool %2", "full float %3"]))
    # Every kind of broadcast, strides, and 16-bit types that meet.
    program = ["%4 = where %0 %1 %2", "%5 = number 0.5", "%6 = mul %4 %5", "%7 = add %6 %3", "%8 = less %7 %1"]
    operands = [rand(4, 1, 33, dtype=torch.bool), rand(33, 7, 4).permute(2, 1, 0), rand(7, 1), rand(1, 1, 33)]
    cases.append(_case(operands, program, ["full float %7", "full bool %8"], [2]))
    half, brain = rand(50, 70).half(), rand(50, 70).bfloat16()
    cases.append(_case([half, brain, rand(50, 70)], ["%3 = mul %0 %2", "%4 = add %3 %1"],
                       ["full float16 %4", "full bfloat16 %3", "full float %4"]))  # fmt: skip
    # A normalization: two means, a value of each row, sums over rows and columns.
    norm = ["%2 = row_mean %0", "%3 = sub %0 %2", "%4 = mul %3 %3", "%5 = row_mean %4", "%6 = number 1e-5",
            "%7 = add %5 %6", "%8 = rsqrt %7", "%9 = mul %3 %8", "%10 = mul %9 %1", "%11 = row_sum %10"]  # fmt: skip
    outs = ["full float %10", "row float %2", "row_dropped float %8", "column float %10", "column_kept float %9"]
    for shape in ((2, 9, 48), (70, 3), (5, 2500), (300, 64)):
        cases.append(_case([rand(*shape), rand(shape[-1])], norm, [*outs, "row bfloat16 %11"]))
    # A row value that comes in, and a single number.
    cases.append(_case([rand(6, 5, 40), rand(5, 1), rand()], ["%3 = exp %1", "%4 = mul %0 %3", "%5 = add %4 %2"],
                       ["full float %5"], [1]))  # fmt: skip
    # Rotary embedding of heads that lie apart, by a table that all batches and heads share, and its gradient's form.
    program = ["%3 = mul %0 %1", "%4 = rotate_half %0", "%5 = mul %4 %2", "%6 = add %3 %5", "%7 = rotate_half %6"]
    heads = rand(2, 50, 3, 36).transpose(1, 2)
    cases.append(_case([heads, rand(50, 36), rand(50, 36)], program, ["full float %6", "full bfloat16 %7"]))
    cases.append(_case([heads.contiguous()], ["%1 = rotate_half %0"], ["full float %1"]))
    cases.append(_case([rand(), rand(5, 8)], ["%2 = rotate_half %1", "%3 = mul %0 %2"], ["full float %3"]))
    cases.append(_case([rand(), rand()], ["%2 = mul %0 %1"], ["full float %2"]))
    return cases


def drawn() -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu").random_(-(2**63), None)  # the host draws


ROWS = [
    # Fusion makes other programs for a GPU, which tests/cuda runs.
    Row("FusedKernel", fused, fused_cases, OWN, differentiable=False, symbolic=False, refuses=True, cpu_alone=True),
    Row("RandomState", drawn, lambda _: [Case(())], OWN, differentiable=False),
]

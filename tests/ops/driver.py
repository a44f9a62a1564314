"""Samples of the operator table, run by the public checkers of ortmodule.testing.

Every check is counted; conftest.py prints the numbers at the end.
"""

from __future__ import annotations

import collections
from typing import Any

import torch

from ortmodule.testing import GradientChecker, OpTester

from .table import Case, Row

# Relative to the larger of 1 and the number, by the type that is computed in.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
REDUCED = (torch.bfloat16, torch.float16)
NUMERIC = 1e-6

COUNTS: collections.Counter[str] = collections.Counter()


def samples(row: Row, dtype: torch.dtype) -> list[Case]:
    torch.manual_seed(0)
    return list(row.cases(dtype))


def reference_of(row: Row, case: Case) -> Any:
    def call(*inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        out = row.reference(*inputs, **case.attributes)
        return (tuple(out) if isinstance(out, tuple | list) else (out,))[: case.outputs]

    def reference(*inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        reduced = next((v.dtype for v in inputs if v is not None and v.dtype in REDUCED), None)
        if reduced is None or not row.wide:
            return call(*inputs)
        out = call(*(v.float() if v is not None and v.dtype == reduced else v for v in inputs))
        kept = row.float_outputs
        return tuple(y if i in kept or y.dtype != torch.float32 else y.to(reduced) for i, y in enumerate(out))

    return reference


def expected(row: Row, case: Case) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return tuple(y.detach() for y in reference_of(row, case)(*case.inputs))


def tolerance_of(row: Row, case: Case, dtype: torch.dtype) -> float:
    if dtype == torch.float64:
        return TOLERANCES[dtype]
    # Rounding of bfloat16 operands needs more room than float32 ever may.
    reduced = any(v is not None and v.dtype in REDUCED for v in case.inputs)
    return max(TOLERANCES.get(dtype, 0.0), min(row.tolerance or 0.0, 1.0 if reduced else 1e-4))


def differentiated(row: Row, case: Case) -> list[int]:
    """The inputs whose gradients are tested."""
    if not row.differentiable:
        return []
    return [
        i
        for i, value in enumerate(case.inputs)
        if value is not None
        and value.dtype.is_floating_point
        and i not in case.constants
        and (row.grads is None or i in row.grads)
    ]


def where(row: Row, case: Case, what: str) -> str:
    shapes = [None if v is None else (tuple(v.shape), v.dtype) for v in case.inputs]
    return f"{what} of {row.qualified_name} {case.attributes} on {shapes}"


def check_forward(
    row: Row, case: Case, what: str = "forward", want: tuple[torch.Tensor, ...] | None = None, **how: bool
) -> None:
    """Values, types and declared shapes against the reference (or `want`)."""
    outputs = expected(row, case) if want is None else want
    test = OpTester(row.name, row.opset, row.domain, row.nodes)
    for i, value in enumerate(case.inputs):
        test.add_input(value, constant=i in case.constants)
    for name, attribute in case.attributes.items():
        test.add_attribute(name, attribute)
    for y in outputs:
        test.add_output(y)
    kinds = {y.dtype for y in outputs if y.dtype.is_floating_point}
    tolerance = max((tolerance_of(row, case, kind) for kind in kinds), default=0.0)
    torch.manual_seed(1)
    try:
        test.run(tolerance, tolerance, **how)
    except AssertionError as error:
        raise AssertionError(f"{where(row, case, what)}: {error}") from None
    COUNTS["values"] += 1 + how.get("strided", False)


def checker(row: Row, case: Case) -> GradientChecker:
    return GradientChecker(
        row.name,
        case.attributes,
        domain=row.domain,
        opset=row.opset,
        outputs=case.outputs,
        constants=case.constants,
        nodes_of=row.nodes,
        wrt=differentiated(row, case),
    )


def check_autograd(
    row: Row, case: Case, dtype: torch.dtype, what: str = "gradient", check: GradientChecker | None = None, **how: bool
) -> None:
    """Outputs in training and gradients against autograd."""
    torch.manual_seed(1)
    try:
        error = (check or checker(row, case)).autograd_error(case.inputs, reference_of(row, case), **how)
    except AssertionError as error:
        raise AssertionError(f"{where(row, case, what)}: {error}") from None
    assert error <= tolerance_of(row, case, dtype), f"{where(row, case, what)} is off by {error:.2g}"
    COUNTS["gradients against autograd"] += 1


def check_numeric(row: Row, case: Case, check: GradientChecker) -> None:
    """The gradient against differences in float64."""
    torch.manual_seed(1)
    error = check.numeric_error(case.inputs, directions=10)
    assert error <= NUMERIC, f"{where(row, case, 'gradient')} is off by {error:.2g} from differences"
    COUNTS["gradients against differences"] += 1

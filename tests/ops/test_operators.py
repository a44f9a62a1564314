"""Every operator of the table: values, declared shapes and gradients, in all forms that a call may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ortmodule import _C, ORTModuleError
from ortmodule.testing.op_tester import other_strides

from .driver import (
    COUNTS,
    check_autograd,
    check_forward,
    check_numeric,
    checker,
    differentiated,
    expected,
    samples,
)
from .forms import with_negative_axes, with_sizes, without_options
from .samples import ROWS
from .table import Case, Row


def label(row: Row) -> str:
    return row.qualified_name.replace("ai.ortmodule::", "own::")


def each(rows: list[Row]) -> Callable:
    names = [label(r) for r in rows]
    ids = [f"{n}-{names[:i].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]
    return pytest.mark.parametrize("row", rows, ids=ids)


DIFFERENTIABLE = [r for r in ROWS if r.differentiable]


@each(ROWS)
def test_forward(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case, strided=True)


@each([r for r in ROWS if r.bfloat16])
def test_forward_in_bfloat16(row: Row) -> None:
    for case in samples(row, torch.bfloat16):
        check_forward(row, case)


@each([r for r in ROWS if r.symbolic])
def test_forward_with_symbolic_sizes(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case, symbolic=True)


@each(ROWS)
def test_forward_over_its_operands(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case, identity_inputs=True)


def makes_sense(row: Row, case: Case) -> bool:
    try:
        expected(row, case)
    except Exception:
        return False
    return True


def forms(row: Row) -> list[tuple[str, Case]]:
    """Forms of the samples that differ in more than numbers, as far as the reference takes them."""
    out, seen = [], set()
    for case in samples(row, torch.float32):
        kind = (str(case.attributes), tuple(v is None or v.shape for v in case.inputs), case.constants)
        if kind in seen:
            continue
        seen.add(kind)
        made = [*with_sizes(case), *without_options(row, case)]
        out += [(what, form) for what, form in made if not what.startswith(row.no_forms) and makes_sense(row, form)]
    return out[:40]


@each(ROWS)
def test_forms(row: Row) -> None:
    """Zero-size and size-1 axes, optional inputs absent: values and gradients."""
    for what, form in forms(row):
        try:
            check_forward(row, form, what)
            if differentiated(row, form):
                check_autograd(row, form, torch.float32, what)
        except ORTModuleError:
            if not row.refuses:
                raise
            continue
        COUNTS[f"forms: {what.split()[0]}"] += 1


@each(ROWS)
def test_negative_axes(row: Row) -> None:
    for case in samples(row, torch.float32):
        for what, form in with_negative_axes(row, case):
            check_forward(row, form, what, want=expected(row, case))
            COUNTS["forms: negative axes"] += 1


@each(DIFFERENTIABLE)
def test_gradient_in_float64(row: Row) -> None:
    """Against differences and autograd; against autograd on other strides too."""
    for case in samples(row, torch.float64):
        if not differentiated(row, case):
            continue
        check = checker(row, case)
        check_autograd(row, case, torch.float64, check=check)
        moved = replace(case, inputs=tuple(v if v is None else other_strides(v) for v in case.inputs))
        check_autograd(row, moved, torch.float64, "gradient on other strides", check)
        if row.smooth and case.smooth:
            check_numeric(row, case, check)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@each(DIFFERENTIABLE)
def test_gradient_in_float32(row: Row, symbolic: bool) -> None:
    if symbolic and not row.symbolic:
        pytest.skip("the rule needs numbers")
    for case in samples(row, torch.float32):
        if differentiated(row, case):
            check_autograd(row, case, torch.float32, symbolic=symbolic)


@each([r for r in DIFFERENTIABLE if r.bfloat16])
def test_gradient_in_bfloat16(row: Row) -> None:
    for case in samples(row, torch.bfloat16):
        if differentiated(row, case):
            check_autograd(row, case, torch.bfloat16)


@each(DIFFERENTIABLE)
def test_gradient_through_intermediate_operands(row: Row) -> None:
    for case in samples(row, torch.float64):
        if differentiated(row, case):
            check_autograd(row, case, torch.float64, identity_inputs=True)


def test_every_operator_has_a_row() -> None:
    """Our gradient operators run with their forward operator's row."""
    covered = {(r.domain, r.name) for r in ROWS}
    missing = [
        f"{op['domain'] or 'ai.onnx'}::{op['name']} ({op['file']})"
        for op in _C.operators()
        if (op["domain"], op["name"]) not in covered
        and not (op["domain"] in ("ai.ortmodule", "org.pytorch.aten") and op["name"].endswith("Grad"))
    ]
    assert not missing, "operators without a row in tests/ops/samples: " + ", ".join(sorted(missing))


def test_every_differentiable_operator_has_its_gradient_checked() -> None:
    checked = {(r.domain, r.name) for r in DIFFERENTIABLE}
    missing = [
        op["name"] for op in _C.operators() if op["differentiable"] and (op["domain"], op["name"]) not in checked
    ]
    assert not missing, f"differentiable, but no row says so: {sorted(missing)}"


def test_every_row_names_an_operator() -> None:
    known = {(op["domain"], op["name"]) for op in _C.operators()}
    assert not [r.qualified_name for r in ROWS if (r.domain, r.name) not in known]

"""Every operator against PyTorch: values, gradients, strides, sizes, operands that a kernel may overwrite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ortmodule import _C

from .driver import (
    ELEMENT_TYPES,
    declared_types,
    differentiated,
    gradients,
    leaves,
    run_engine,
    run_reference,
    strided,
)
from .samples import ROWS
from .table import Case, Row

# Absolute and relative, by the type of the outputs.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def label(row: Row) -> str:
    return row.qualified_name.replace("ai.ortmodule::", "own::")


def each(rows: list[Row]) -> Callable:
    names = [label(r) for r in rows]
    ids = [f"{n}-{names[:i].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]
    return pytest.mark.parametrize("row", rows, ids=ids)


def samples(row: Row, dtype: torch.dtype) -> list[Case]:
    torch.manual_seed(0)
    return list(row.cases(dtype))


def assert_close(row: Row, case: Case, what: str, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    shapes = [None if v is None else (tuple(v.shape), v.dtype) for v in case.inputs]
    where = f"{what} of {row.qualified_name} {case.attributes} on {shapes}"
    if want is None or got is None:
        # Nothing flows and zeros are the same gradient.
        other = got if want is None else want
        assert other is None or not other.any(), where
        return
    tolerance = TOLERANCES.get(want.dtype, 0.0)
    if want.dtype != torch.float64:
        # Rounding of bfloat16 operands needs more room than float32 ever may.
        reduced = any(v is not None and v.dtype in (torch.bfloat16, torch.float16) for v in case.inputs)
        tolerance = max(tolerance, min(row.tolerance or 0.0, 1.0 if reduced else 1e-4))
    assert got.dtype == want.dtype and got.shape == want.shape, f"{where}: {got.dtype} {got.shape}, {want.shape}"
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{where}: {m}")


def eval_dim(dim: int | str, table: dict[str, int]) -> int | None:
    """A declared dim as a number, None when it holds a symbol that no input binds."""
    if isinstance(dim, int):
        return dim
    try:
        return int(eval(dim, {"Max": max, "Min": min, "Mod": lambda a, b: a % b}, dict(table)))
    except NameError:
        return None


def check_forward(row: Row, case: Case, **how: bool) -> None:
    before = [None if v is None else v.clone() for v in case.inputs]
    torch.manual_seed(1)
    got = run_engine(row, case, case.inputs, **how)
    torch.manual_seed(1)
    want = run_reference(row, case, case.inputs)
    assert len(got) == len(want)
    for k, (g, w) in enumerate(zip(got, want)):
        assert_close(row, case, f"output {k}", g, w.detach())
    for k, (value, kept) in enumerate(zip(case.inputs, before)):
        assert value is None or torch.equal(value.nan_to_num(), kept.nan_to_num()), f"input {k} was overwritten"


def check_gradient(row: Row, case: Case, **how: bool) -> None:
    if not differentiated(row, case):
        return
    theirs = leaves(row, case)
    torch.manual_seed(1)
    want_outputs = run_reference(row, case, theirs)
    if not any(y.requires_grad for y in want_outputs):
        return
    ours = leaves(row, case)
    torch.manual_seed(1)
    got_outputs = run_engine(row, case, ours, **how)
    for k, (g, w) in enumerate(zip(got_outputs, want_outputs)):
        assert_close(row, case, f"output {k} in training", g.detach(), w.detach())
    names = differentiated(row, case)
    for i, got, want in zip(names, gradients(got_outputs, ours), gradients(want_outputs, theirs)):
        assert_close(row, case, f"gradient {i}", got, want)


@each(ROWS)
def test_forward(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case)


@each([r for r in ROWS if r.bfloat16])
def test_forward_in_bfloat16(row: Row) -> None:
    for case in samples(row, torch.bfloat16):
        check_forward(row, case)


@each(ROWS)
def test_forward_of_strided_inputs(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, Case(tuple(map(strided, case.inputs)), case.attributes, case.constants, case.outputs))


@each([r for r in ROWS if r.symbolic])
def test_forward_with_symbolic_sizes(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case, symbolic=True)


@each(ROWS)
def test_forward_over_its_operands(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_forward(row, case, identity_inputs=True)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@each(ROWS)
def test_types_and_shapes_are_as_declared(row: Row, symbolic: bool) -> None:
    """Types, integer dims and symbols bound by the inputs say what a run gives; the rest promises nothing."""
    if symbolic and not row.symbolic:
        pytest.skip("the rule needs numbers")
    for case in samples(row, torch.float32):
        outputs = run_reference(row, case, case.inputs)
        for (kind, dims), y in zip(declared_types(row, case, symbolic=symbolic), outputs):
            assert kind in (0, ELEMENT_TYPES[y.dtype]), f"{row.qualified_name} {case.attributes}"
            if dims is None:
                continue
            table = {f"s{d}": d for v in case.inputs if v is not None for d in v.shape}
            known = [eval_dim(d, table) for d in dims]
            assert len(known) == y.dim() and all(k in (None, n) for k, n in zip(known, y.shape)), (
                f"{row.qualified_name} {case.attributes}: declared {dims}, got {tuple(y.shape)}"
            )


DIFFERENTIABLE = [r for r in ROWS if r.differentiable]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@each(DIFFERENTIABLE)
def test_gradient(row: Row, dtype: torch.dtype) -> None:
    for case in samples(row, dtype):
        check_gradient(row, case)


@each([r for r in DIFFERENTIABLE if r.symbolic])
def test_gradient_with_symbolic_sizes(row: Row) -> None:
    for case in samples(row, torch.float32):
        check_gradient(row, case, symbolic=True)


@each(DIFFERENTIABLE)
def test_gradient_of_strided_inputs(row: Row) -> None:
    for case in samples(row, torch.float64):
        check_gradient(row, Case(tuple(map(strided, case.inputs)), case.attributes, case.constants, case.outputs))


@each(DIFFERENTIABLE)
def test_gradient_through_intermediate_operands(row: Row) -> None:
    for case in samples(row, torch.float64):
        check_gradient(row, case, identity_inputs=True)


def test_every_operator_has_a_row() -> None:
    """Gradient operators run with their forward operator's row."""
    covered = {(r.domain, r.name) for r in ROWS}
    missing = [
        f"{op['domain'] or 'ai.onnx'}::{op['name']} ({op['file']})"
        for op in _C.operators()
        if (op["domain"], op["name"]) not in covered and not op["name"].endswith("Grad")
    ]
    assert not missing, "operators without a row in tests/ops/samples_*.py: " + ", ".join(sorted(missing))


def test_every_row_names_an_operator() -> None:
    known = {(op["domain"], op["name"]) for op in _C.operators()}
    assert not [r.qualified_name for r in ROWS if (r.domain, r.name) not in known]

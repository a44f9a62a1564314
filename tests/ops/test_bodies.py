"""Bodies against kernels: each row's operator and its gradient, written in standard operators, give the same numbers.

The model of one node is differentiated, every operator of ours in it is replaced by its body (what
`export_training_graph` does), and the result runs as an inference model, whose standard operators have kernels of their
own. A row whose gradient has no form in standard operators is skipped with the operator's name.
"""

from __future__ import annotations

import onnx
import pytest
import torch

from ortmodule import _C, UnsupportedError

from .driver import differentiated, reference_of, samples
from .engine import assert_close, build, leaves, seeds_of
from .samples import ROWS
from .table import Case, Row
from .test_operators import each

OURS = ("ai.ortmodule", "org.pytorch.aten")
WITH_BODIES = [r for r in ROWS if r.differentiable or r.domain in OURS]


def check(row: Row, case: Case, **how: bool) -> None:
    theirs = leaves(row, case)
    torch.manual_seed(1)
    want = reference_of(row, case)(*theirs)
    flowing = [k for k, y in enumerate(want) if y.requires_grad]
    built = build(row, case, **how)
    place = {slot: name for name, slot in zip(built.names, built.slots)}
    inputs = [i for i in differentiated(row, case) if flowing]
    model = _C.training_graph(
        built.model.SerializeToString(), [place[i] for i in inputs], [], [f"y{k}" for k in flowing] if inputs else []
    )
    proto = onnx.load_from_string(model)
    assert not {n.domain for n in proto.graph.node} & set(OURS)
    seeds = {f"y{k}_grad": seed for k, seed in zip(flowing, seeds_of([want[k] for k in flowing]))}
    values = {name: case.inputs[slot] for name, slot in zip(built.names, built.slots)} | seeds
    session = _C.Session(model, "inference", [], {"dropout": "torch"})
    torch.manual_seed(1)
    got = dict(zip(session.output_names, session.run([values[name] for name in session.input_names])))
    for k, y in enumerate(want):
        assert_close(row, case, f"output {k}", got[f"y{k}"], y.detach())
    if not inputs:
        return
    taken = [k for k in flowing if f"y{k}_grad" in session.input_names]
    wanted = [theirs[i] for i in inputs]
    gradients = torch.autograd.grad([want[k] for k in taken], wanted, [seeds[f"y{k}_grad"] for k in taken],
                                    allow_unused=True)  # fmt: skip
    for i, gradient in zip(inputs, gradients):
        assert_close(row, case, f"gradient {i}", got[f"{place[i]}_grad"], gradient)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@each(WITH_BODIES)
def test_body(row: Row, symbolic: bool) -> None:
    if symbolic and not row.symbolic:
        pytest.skip("the rule needs numbers")
    lacking, checked = "", 0
    for case in samples(row, torch.float64):
        try:
            check(row, case, symbolic=symbolic)
            checked += 1
        except UnsupportedError as error:
            if "no form in" not in str(error):
                raise
            lacking = str(error)
    if not checked:
        pytest.skip(lacking)

"""Second derivatives of every differentiable operator of the table, against autograd's: of its gradients, made a graph
of their own, the gradients. A row without a second derivative, ours or PyTorch's, is skipped and says why.
"""

from __future__ import annotations

import pytest
import torch

from ortmodule import UnsupportedError
from ortmodule.graph_transition.derivatives import Derivatives

from .driver import differentiated, reference_of, samples
from .engine import assert_close, build, leaves, seeds_of
from .table import Case, Row
from .test_operators import DIFFERENTIABLE, each

_PYTORCHS = ("not implemented", "does not require grad", "not differentiable", "not supported", "double backward")


class NothingFlowsError(Exception):
    """The operator's gradient does not depend on anything that wants one."""


def projected(outputs: list[torch.Tensor], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) - 0.3 for y in outputs]
    return sum(((y * weight).sum() for y, weight in zip(outputs, weights)), torch.zeros((), dtype=torch.float64))


def seconds_of(first: list[torch.Tensor | None], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    flowing = [g for g in first if g is not None and g.requires_grad]
    if not flowing:
        return [None] * len(wanted)
    return list(torch.autograd.grad(projected(flowing, 11), wanted, allow_unused=True))


def where_both_are(
    mine: list[torch.Tensor | None], theirs: list[torch.Tensor | None], like: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Both, none as zero. Where there is no second derivative (of a norm at zero) which of them are NaN is a matter of
    the order of operations: there the numbers alone are compared.
    """
    pairs = [[torch.zeros_like(x) if y is None else y for y in two] for *two, x in zip(mine, theirs, like, strict=True)]
    if any(want.isnan().any() for _, want in pairs):
        pairs = [[y.where(got.isfinite() & want.isfinite(), 0) for y in (got, want)] for got, want in pairs]
    return [got for got, _ in pairs], [want for _, want in pairs]


def check(row: Row, case: Case, **how: bool) -> None:
    theirs = leaves(row, case)
    torch.manual_seed(1)
    outputs = reference_of(row, case)(*theirs)
    flowing = [k for k, y in enumerate(outputs) if y.requires_grad]
    inputs = [i for i in differentiated(row, case) if flowing]
    if not inputs:
        raise NothingFlowsError
    dys = [dy.requires_grad_() for dy in seeds_of([outputs[k] for k in flowing])]
    wanted = [x for i in inputs if (x := theirs[i]) is not None]
    first = torch.autograd.grad([outputs[k] for k in flowing], wanted, dys, create_graph=True, allow_unused=True)
    second = seconds_of(list(first), [*wanted, *dys])

    built = build(row, case, **how)
    place = {slot: name for name, slot in zip(built.names, built.slots)}
    mine = {i: x for i, x in enumerate(leaves(row, case)) if x is not None}
    my_dys = {f"y{k}": dy.detach().clone().requires_grad_() for k, dy in zip(flowing, dys)}
    derivatives = Derivatives(built.model.SerializeToString, [place[i] for i in inputs], {"dropout": "torch"})
    my_first = derivatives.gradients([mine[slot] for slot in built.slots], (), my_dys, range(len(inputs)))
    for i, got, want in zip(inputs, my_first, first, strict=True):
        assert_close(row, case, f"gradient {i}", torch.zeros_like(mine[i]) if got is None else got, want)
    my_wanted = [*(mine[i] for i in inputs), *my_dys.values()]
    for got, want in zip(*where_both_are(seconds_of(my_first, my_wanted), second, my_wanted), strict=True):
        assert_close(row, case, "second derivative", got, want)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@each(DIFFERENTIABLE)
def test_second_derivative(row: Row, symbolic: bool) -> None:
    if symbolic and not row.symbolic:
        pytest.skip("the rule needs numbers")
    lacking, checked = "", 0
    for case in samples(row, torch.float64):
        try:
            check(row, case, symbolic=symbolic)
            checked += 1
        except (UnsupportedError, NothingFlowsError) as error:
            lacking = str(error)
        except (RuntimeError, NotImplementedError) as error:
            if not any(text in str(error) for text in _PYTORCHS):
                raise
            lacking = f"PyTorch: {error}"
    if not checked:
        pytest.skip(lacking)

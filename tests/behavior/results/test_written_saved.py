"""Forwards that write what autograd has saved, what it forbids to write, or what a checkpoint writes once more: they
end as in eager, with its errors and its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..scenario import check, state
from ..table import rand


class Writing(nn.Module):
    """Runs one of the functions below, which may return several tensors."""

    def __init__(self, run: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.layer = run, nn.Linear(4, 4)
        self.table = nn.Buffer(torch.linspace(0.5, 2.0, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad


def a_result_of_tanh(m: Any, x: torch.Tensor) -> Any:
    y = m.layer(x).tanh()
    z = y * 2
    y.add_(1)
    return z


def a_factor(m: Any, x: torch.Tensor) -> Any:
    factor = m.layer(x)
    y = factor * factor.sin()
    factor += 1
    return y, factor


def a_copy_of_a_buffer(m: Any, x: torch.Tensor) -> Any:
    scale = m.table.clone()
    y = m.layer(x) * scale
    scale.zero_()
    return y


def a_buffer(m: Any, x: torch.Tensor) -> Any:
    y = m.layer(x) * m.table
    m.table.add_(1)
    return y


def one_way_of_two(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x)
    y = h.exp()
    z = y + 1
    y.mul_(2)
    return h.sin(), z.detach(), y


def a_row(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x).sigmoid()
    h[0] = 0
    return h


def what_a_function_saved(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x)
    y = Cubed.apply(h)
    h.add_(1)
    return y


def beside_what_a_function_saved(m: Any, x: torch.Tensor) -> Any:
    y = Cubed.apply(m.layer(x))
    y += x
    return y


def nothing_that_is_saved(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x)
    h += 1
    return h.mul_(2).relu_() + m.table


def a_part_of_a_split(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x)
    first, second = h.split(2, 1)
    first.add_(1)
    return h + second.sum()


def a_part_of_an_input(m: Any, x: torch.Tensor) -> Any:
    first, _ = (x * 1).chunk(2, 1)
    first += 1
    return m.layer(x) + first.sum()


def a_row_of_all(m: Any, x: torch.Tensor) -> Any:
    for row in m.layer(x).unbind():
        row.mul_(2)
    return m.layer(x)


def a_view_made_without(m: Any, x: torch.Tensor) -> Any:
    h = m.layer(x)
    with torch.no_grad():
        view = h.view(-1)
    view.add_(1)
    return h


RUNS = [
    a_result_of_tanh, a_factor, a_copy_of_a_buffer, a_buffer, one_way_of_two, a_row, what_a_function_saved,
    beside_what_a_function_saved, nothing_that_is_saved, a_part_of_a_split, a_part_of_an_input, a_row_of_all,
    a_view_made_without,
]  # fmt: skip


def steps(wanted: bool) -> Any:
    """Training steps on all results, on the first one, and after a forward without gradients."""

    def run(m: Any) -> Iterator[Any]:
        for every in (True, False, False):
            x = rand(5, 4).requires_grad_(wanted)
            try:
                found = m(x)
                results = found if isinstance(found, tuple) else (found,)
                yield results
                losses = [r.square().sum() for r in results[: None if every else 1] if r.requires_grad]
                sum(losses, torch.zeros(())).backward()
            except RuntimeError as error:
                text = str(error)
                yield "raised", "modified by an inplace" in text, "is being modified inplace" in text
            yield x.grad, [p.grad for p in m.parameters()], state(m)
            m.zero_grad()
            m.layer.requires_grad_(not m.layer.weight.requires_grad)
            with torch.no_grad():
                yield m(x)

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_write_ends_where_it_ends_in_eager(run: Any, wanted: bool) -> None:
    check(steps(wanted), lambda: Writing(run), None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [nothing_that_is_saved, beside_what_a_function_saved])
def test_writes_of_what_nothing_needs_stay_in_the_engine(run: Any) -> None:
    model = check(steps(True), lambda: Writing(run), None)
    assert model.report().fallback == "none"


class Checkpointed(nn.Module):
    """A norm and an activation in place, in a region that backward runs again."""

    def __init__(self, norm: nn.Module, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last, self.reentrant = nn.Linear(4, 4), norm, nn.Linear(4, 3), reentrant

    def region(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)).relu_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.region, x.tanh(), use_reentrant=self.reentrant))


def trained_and_evaluated(m: Any) -> Iterator[Any]:
    for mode in (True, False, True):
        m.train(mode)
        x = rand(5, 3, 4).requires_grad_()
        y = m(x)
        before = state(m)
        y.square().sum().backward()
        yield y, before, x.grad, state(m)
        m.zero_grad()
        with torch.no_grad():
            yield m(x), state(m)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("make", "stays"),
    [
        (lambda: nn.BatchNorm1d(3), False),
        (lambda: nn.BatchNorm1d(3, momentum=None), False),
        (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), False),
        (lambda: nn.BatchNorm1d(3, track_running_stats=False), True),
        (lambda: nn.LayerNorm(4), True),
    ],
)
def test_statistics_in_a_checkpoint_count_as_often_as_in_eager(
    make: Callable[[], nn.Module], stays: bool, reentrant: bool
) -> None:
    model = check(trained_and_evaluated, lambda: Checkpointed(make(), reentrant), None)
    assert (model.report().fallback == "none") == stays

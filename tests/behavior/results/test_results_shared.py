"""Results that share memory in eager, with each other, with what is given or with the module's: they do so here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ortmodule import ORTModule

from ..scenario import check
from ..table import rand

View = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# What is made of a tensor, beside another one of its size.
VIEWS: dict[str, View] = {
    "itself": lambda t, o: t,
    "type_as": lambda t, o: t.type_as(o),
    "to a tensor's type": lambda t, o: t.to(o),
    "to a type": lambda t, o: t.to(torch.float32),
    "contiguous": lambda t, o: t.contiguous(),
    "dropout of nothing": lambda t, o: F.dropout(t, 0.0),
    "dropout in evaluation": lambda t, o: F.dropout(t, 0.5, False),
    "real": lambda t, o: torch.real(t),
    "conj": lambda t, o: torch.conj(t),
    "broadcast": lambda t, o: torch.broadcast_tensors(t, o)[0],
    "broadcast wider": lambda t, o: torch.broadcast_tensors(t, o[None])[0],
    "atleast_3d": lambda t, o: torch.atleast_3d(t),
    "atleast_2d of two": lambda t, o: torch.atleast_2d(o, t)[1],
    "expand_as": lambda t, o: t.expand_as(o),
    "view_as": lambda t, o: t.view_as(o),
    "reshape_as": lambda t, o: t.reshape_as(o),
    "flatten": lambda t, o: t.flatten(),
    "chunk": lambda t, o: t.chunk(2)[1],
    "unbind": lambda t, o: t.unbind(1)[0],
    "meshgrid": lambda t, o: torch.meshgrid(t[0], o[0], indexing="ij")[0],
    "transposed": lambda t, o: t.mT,
    "diagonal": lambda t, o: t.diagonal(),
    "detached": lambda t, o: t.detach(),
}
# What the view is of.
BASES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "the input": lambda m, x: x,
    "a parameter": lambda m, x: m.weight,
    "a buffer": lambda m, x: m.kept,
    "a value": lambda m, x: x * 2,
    "a value that was written": lambda m, x: (x * 2).add_(1),
}


class Sharing(nn.Module):
    kept: torch.Tensor

    def __init__(self, base: str, view: str, with_base: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 20).view(5, 4))
        self.register_buffer("kept", torch.linspace(0, 1, 20).view(5, 4))
        self.base, self.view, self.with_base = BASES[base], VIEWS[view], with_base

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> Any:
        base = self.base(self, x)
        view = self.view(base, other)
        return (base, view) if self.with_base else (view, base[1:])


def write_each(grad: bool) -> Callable[[Any], Iterator[Any]]:
    """Writes into one result after the other, and looks at all that may share its memory."""

    def run(m: Any) -> Iterator[Any]:
        for _ in range(3):
            x, other = rand(5, 4), rand(5, 4)
            with torch.set_grad_enabled(grad):
                results = m(x, other)
            given = (x, m.weight, m.kept)
            yield [[one is another for another in (*results, *given)] for one in results]
            for result in results:
                with torch.no_grad():
                    result.detach()[(0,) * result.dim()] += 3.0
                yield [t.detach().clone() for t in (*results, *given)]

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_base", [True, False], ids=["beside the base", "beside a part"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("view", VIEWS)
def test_results_share_memory(view: str, base: str, with_base: bool) -> None:
    for grad in (True, False):
        check(write_each(grad), lambda: Sharing(base, view, with_base), None)


WRITTEN: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "contiguous, then its argument": lambda m, x: (t := x.contiguous(), x.add_(1), t * 2)[-1],
    "contiguous": lambda m, x: (t := x.contiguous(), t.add_(1), x * 2)[-1],
    "reshape": lambda m, x: (t := x.reshape(-1), t.add_(1), x * 2)[-1],
    "flatten, then its argument": lambda m, x: (t := x.flatten(), x.add_(1), t * 2)[-1],
    "a value's contiguous": lambda m, x: (h := x * 2, t := h.contiguous(), h.add_(1), t * 2)[-1],
    "type_as": lambda m, x: (t := x.type_as(m.weight), x.add_(1), t * 2)[-1],
    "dropout of nothing": lambda m, x: (t := F.dropout(x, 0.0), x.add_(1), t * 2)[-1],
    "broadcast": lambda m, x: (t := torch.broadcast_tensors(x, m.weight)[0], x.add_(1), t * 2)[-1],
    "expanded, which eager refuses": lambda m, x: (t := x[:1].expand(5, 4), t.add_(1))[-1],
    "expanded by its size, which eager refuses": lambda m, x: x[0].expand_as(x).mul_(2),
}  # fmt: skip


@pytest.mark.parametrize("order", ["rows first", "columns first"])
@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_a_copy_or_not_by_how_it_lies(written: str, order: str) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return WRITTEN[written](self, x)

    def run(m: Any) -> Iterator[Any]:
        for call in range(4):
            x = rand(5, 4)
            if (call % 2 == 0) == (order == "columns first"):
                x = x.t().contiguous().t()
            yield m(x), x

    check(run, Writing, None)


def test_a_write_after_a_cast_to_the_type_that_it_has_reaches_the_parameter() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            _ = self.weight.type_as(x)
            return self.weight.add_(0.25) * x

    model = ORTModule(Writing())
    with torch.no_grad():
        for call in range(1, 4):
            torch.testing.assert_close(model(torch.ones(2, 3)), torch.full((2, 3), 0.25 * call))
            torch.testing.assert_close(model.weight.detach(), torch.full((2, 3), 0.25 * call))


def test_tensors_under_vmap_are_not_asked_for_their_memory() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda row: row.contiguous().type_as(self.weight).reshape(-1) * self.weight)(x)

    eager, model = Mapped(), ORTModule(Mapped())
    for _ in range(2):
        x = rand(5, 4)
        torch.testing.assert_close(model(x), eager(x))
    assert model.report().fallback == "none"

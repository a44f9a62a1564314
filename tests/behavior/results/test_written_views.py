"""Somebody writes an input, a parameter or a buffer between forward and backward, of which the backward reads a view, a
copy or a number: eager raises for the view and goes on with the others; no gradient is ever made of what was written.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ortmodule import Options, ORTModule

Read = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, Read] = {
    "slice": lambda t: t[:2],
    "step": lambda t: t[::2],
    "transpose": lambda t: t.t(),
    "reshape": lambda t: t.reshape(-1),
    "view": lambda t: t.view(2, 8),
    "select": lambda t: t[1],
    "narrow": lambda t: t.narrow(1, 1, 2),
    "expand": lambda t: t[:1].expand(4, 4),
    "chunk": lambda t: t.chunk(2)[1],
    "unbind": lambda t: t.unbind()[2],
    "split": lambda t: torch.split(t, [1, 3])[1],
    "squeeze": lambda t: t[:1].squeeze(0),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "movedim": lambda t: t.movedim(0, 1),
    "detach": lambda t: t.detach()[0],
}
COPIES: dict[str, Read] = {
    "clone": lambda t: t.clone(),
    "clone of a view": lambda t: t[1:].clone(),
    "view of a clone": lambda t: t.clone()[1:],
    "contiguous": lambda t: t.t().contiguous(),
    "sum": lambda t: t + 0,
    "number": lambda t: t[0, 0].item(),  # type: ignore[return-value]
}
# Views in eager; here the elements are taken.
TAKEN: dict[str, Read] = {"diagonal": lambda t: t.diagonal(), "as_strided": lambda t: t.as_strided((2, 2), (1, 2))}


class Reader(nn.Module):
    def __init__(self, read: Read, who: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read, self.who = read, who
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("b", torch.randn(4, 4))

    def source(self, given: torch.Tensor) -> torch.Tensor:
        return {"argument": given, "parameter": self.w, "buffer": self.b}[self.who]

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        v = self.read(self.source(given))
        return torch.as_tensor(self.linear(x).sum() * v * v).sum()


def steps(read: Read, who: str, engine: bool, write: bool) -> list[list[torch.Tensor | None] | str]:
    """Gradients of three steps, or "raises"; after each step the source is written."""
    torch.manual_seed(0)
    inner = Reader(read, who)
    model = ORTModule(inner, options=Options(fallback="error")) if engine else inner
    found: list[list[torch.Tensor | None] | str] = []
    for _ in range(3):
        x, given = torch.randn(3, 4), torch.arange(16.0).reshape(4, 4)
        inner.zero_grad()
        loss = model(x, given)
        try:
            if write:
                with torch.no_grad():
                    inner.source(given).add_(1.0)
            loss.backward()
            found.append([p.grad for p in inner.parameters()])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error) or "modified inplace" in str(error)
            found.append("raises")
        if not write:
            with torch.no_grad():
                inner.source(given).add_(1.0)
    return found


def assert_same(got: list, want: list) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a == "raises") == (b == "raises")
        if a != "raises":
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("who", ["argument", "parameter", "buffer"])
@pytest.mark.parametrize("name", [*VIEWS, *COPIES])
def test_as_in_eager(name: str, who: str) -> None:
    read = {**VIEWS, **COPIES}[name]
    want = steps(read, who, engine=False, write=True)
    assert ("raises" in want) == (name in VIEWS)
    assert_same(steps(read, who, engine=True, write=True), want)
    assert_same(steps(read, who, engine=True, write=False), steps(read, who, engine=False, write=False))


@pytest.mark.parametrize("who", ["argument", "parameter", "buffer"])
@pytest.mark.parametrize("name", TAKEN)
def test_elements_that_are_taken_are_those_of_the_forward(name: str, who: str) -> None:
    got = steps(TAKEN[name], who, engine=True, write=True)  # or they are taken again from the weight, which was written
    want = steps(TAKEN[name], who, engine=False, write=False)
    assert_same(["raises" if a == "raises" else b for a, b in zip(got, want, strict=True)], got)

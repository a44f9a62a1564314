"""What a trace makes of an operator at less cost than torch is what torch makes of it.

Not here: blocks that are traced once (test_repeated_blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ortmodule import ORTModule
from ortmodule.capture.trace import export, patching
from ortmodule.capture.trace.patches.costs import operator_records, operator_results
from tests.zoo import build


class Of(nn.Module):
    def __init__(self, forward: Callable[..., Any], count: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function, self.count = forward, count

    def forward(self, x: torch.Tensor, *further: Any) -> Any:
        h = self.linear(x)
        for i in range(self.count):
            h = self.function(h, i, *further)
        return h.sum(), h


def written_views(h: torch.Tensor, i: int) -> torch.Tensor:
    """A write is seen by all that share its memory, which an operator's second result has to as its first."""
    h = h * 1.0
    left, right = h[:, :4], h[:, 4:]
    left.add_(1)
    right[:, 1:3].mul_(2)
    flat = h.view(-1)
    flat[: 1 + i].zero_()
    return h + flat.view_as(h).transpose(0, 1).transpose(0, 1)


def one_thing_twice(h: torch.Tensor, i: int) -> torch.Tensor:
    """An operator on a tensor and itself, on two tensors alike, and on two views of one memory."""
    other = h * 1.0
    return torch.cat([h, h]).sum() * torch.add(h, other) + torch.add(h, h) + torch.maximum(other[:, :], other)


def many_results(h: torch.Tensor, i: int) -> torch.Tensor:
    values, indices = h.max(-1)
    parts = h.unbind(-1)
    mean, std = torch.std_mean(h, -1)
    return h * values[:, None] + indices[:, None] + parts[i][:, None] + (mean + std)[:, None]


def kinds(h: torch.Tensor, i: int) -> torch.Tensor:
    """Equal sizes of other dtypes, strides, numbers and flags."""
    t = h.t().contiguous().t()
    half = h.to(torch.bfloat16) * 2
    return (h * 2 + h * 2.0 + h * True + t * 2 + half + half.float() * 2 + h.detach() * 2 + (h > 0) * 2).clone()


def without_gradients(h: torch.Tensor, i: int) -> torch.Tensor:
    with torch.no_grad():
        kept = torch.tanh(h) * 2
    return torch.tanh(h) * 2 + kept


def of_their_own(h: torch.Tensor, i: int) -> torch.Tensor:
    """What is made of numbers; a default of torch's is one of the things that a result hangs on."""
    torch.set_default_dtype(torch.float64 if i % 2 else torch.float32)
    made = torch.ones(8) * 0.5 + torch.arange(8)
    torch.set_default_dtype(torch.float32)
    return h + made.float() + torch.tensor([1.0, 2.0]).sum() + torch.zeros_like(h).fill_(i)


def sizes(h: torch.Tensor, i: int) -> torch.Tensor:
    n, width = h.shape
    wide = h.view(n, 2, width // 2).transpose(0, 1).reshape(2 * n, -1)
    return F.pad(wide, (0, n)).narrow(1, 0, 4).reshape(n, width) * n + h.new_full((n, 1), float(width))


def random(h: torch.Tensor, i: int) -> torch.Tensor:
    return F.dropout(h, 0.25, True) + torch.rand_like(h)


FUNCTIONS = (written_views, one_thing_twice, many_results, kinds, without_gradients, of_their_own, sizes, random)


def batch(size: int) -> torch.Tensor:
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(size))


@pytest.fixture
def as_torch_does(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Leaves the shortcuts out from then on."""
    shortcuts = {id(one) for one in (*operator_records.PATCHES, *operator_results.PATCHES)}

    def leave_out() -> None:
        kept = tuple(one for one in patching.entries() if id(one) not in shortcuts)
        assert len(kept) == len(patching.entries()) - len(shortcuts)
        monkeypatch.setattr(patching, "entries", lambda: kept)

    return leave_out


def captures_of(captured: list[Any], make: Callable[[], nn.Module], calls: list[dict[str, Any]]) -> list[Any]:
    torch.manual_seed(0)
    model = ORTModule(make())
    captured.clear()
    for call in calls:
        model(**call)
    return list(captured)


def compare(captured: list[Any], as_torch_does: Callable[[], None], make: Any, calls: list[dict[str, Any]]) -> None:
    captures_of(captured, make, calls[:1])  # what pytest itself does when it is called first
    got = captures_of(captured, make, calls)
    as_torch_does()
    wanted = captures_of(captured, make, calls)
    assert len(got) == len(wanted) >= len(calls)
    for one, other in zip(got, wanted, strict=True):
        assert one[:3] == other[:3]
        assert [(e.text, e.value) for e in one[3]] == [(e.text, e.value) for e in other[3]]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_graph_is_torchs(function: Any, captured: list[Any], as_torch_does: Callable[[], None]) -> None:
    compare(captured, as_torch_does, lambda: Of(function), [{"x": batch(4)}, {"x": batch(6)}])


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "mixtral", "whisper", "vit"])
def test_of_families_too(family: str, captured: list[Any], as_torch_does: Callable[[], None]) -> None:
    sample = build(family)
    compare(captured, as_torch_does, lambda: build(family).module, [sample.inputs])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_numbers_are_eagers(function: Any) -> None:
    torch.manual_seed(0)
    module = Of(function).double()
    model = ORTModule(module)
    for size in (4, 6):
        results = []
        for runner in (module, model):
            torch.manual_seed(1)
            module.zero_grad()
            loss, h = runner(batch(size).double())
            loss.backward()
            results.append([loss, h, *(p.grad.clone() for p in module.parameters())])
        if function is not random:  # the engine draws from a stream of its own
            torch.testing.assert_close(results[1], results[0])
    assert model.report().fallback == "none"


# -- how often an operator's result is worked out -----------------------------------------------------------------


class Rows(nn.Module):
    """Each row of a triangle from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.linear(x)
        for i in range(1, 16):
            row = rows[:, :i].sum(-1, keepdim=True) * rows[:, i:]
            rows = torch.cat([rows[:, :i], row], 1)
        return rows


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize(("make", "most"), [(Layers, 30), (Rows, 230)])
def test_each_result_once(make: Callable[[], nn.Module], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[Any] = []

    class Heard(operator_results._Results):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            traces.append(self)

    monkeypatch.setattr(operator_results, "_Results", Heard)
    monkeypatch.setattr(export, "Repeats", lambda root: None)
    model = ORTModule(make())
    model(torch.ones(3, 16)).sum().backward()
    traces.clear()
    model(torch.randn(5, 16))  # with a symbolic size
    assert 10 <= sum(len(one._known) for one in traces) <= most

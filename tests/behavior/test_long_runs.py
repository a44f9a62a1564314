"""Long runs: many random sizes take two captures; schemas and settings in turn give the right numbers every time.

`LONG_RUNS=1` runs the whole length (1,000 steps); by default a tenth of it.
"""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule import ORTModule
from tests.support import Lambda, exports, pair

from .table import compare, rand

STEPS = 1000 if os.environ.get("LONG_RUNS") else 100


class Tagger(nn.Module):
    """An embedding, attention over a mask, and a loss: the sizes of a language model in small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = self.encoder(self.norm(self.embed(ids)))
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


def test_random_batches_and_lengths_take_two_captures() -> None:
    eager = Tagger()
    model = ORTModule(copy.deepcopy(eager))
    optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, eager)]
    sizes = random.Random(0)
    for step in range(STEPS):
        shape = sizes.randint(2, 9), sizes.randint(2, 16)
        ids, labels = torch.randint(0, 11, shape), torch.randint(0, 5, shape)
        losses = []
        for module, optimizer in zip((model, eager), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(module(ids, labels))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4, msg=lambda m, s=step: f"step {s}: {m}")
    report = model.report()
    assert report.fallback == "none" and len(report.exports) <= 2, report


def test_sizes_of_one_among_them_take_graphs_of_their_own() -> None:
    """A size of one broadcasts and may be squeezed, so what holds for it holds for no other."""
    eager = Tagger()
    model = ORTModule(copy.deepcopy(eager))
    sizes = random.Random(0)
    for _ in range(30):
        shape = sizes.randint(1, 3), sizes.randint(1, 4)
        compare(model, eager, (torch.randint(0, 11, shape), torch.randint(0, 5, shape)), {}, rtol=1e-3)
    assert exports(model) <= 5, model.report()


@pytest.mark.parametrize("second", [(7, 3), (4, 5), (4, 3)])
def test_whichever_size_changes_first_the_other_may_change_too(second: tuple[int, int]) -> None:
    eager = Tagger()
    model = ORTModule(copy.deepcopy(eager))
    for shape in ((7, 5), second, (2, 9), (3, 2)):
        compare(model, eager, (torch.randint(0, 11, shape), torch.randint(0, 5, shape)), {}, rtol=1e-3)
    assert exports(model) == 2, model.report()


def summed(m: Lambda, batch: Any, flag: bool = False) -> torch.Tensor:
    x = batch["x"] if isinstance(batch, dict) else batch
    return m.linear(x).tanh() if flag else m.linear(x)


def test_two_schemas_in_turn_take_two_captures() -> None:
    model, eager = pair(Lambda(summed))
    for _ in range(4):
        compare(model, eager, (rand(3, 4),), {})
        compare(model, eager, ({"x": rand(3, 4)},), {})
    assert exports(model) == 2


def test_settings_toggled_in_any_order_are_right_and_said() -> None:
    """Mode, autocast, requires_grad of a parameter and of an input, a bool argument, gradient mode."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
            h = self.norm(self.linear(x).float())
            return h.tanh() if flag else h

    model, eager = pair(Net())
    choice = random.Random(0)
    seen = set()
    for _ in range(STEPS):
        train, cast, frozen, wanted, flag, grad = (bool(choice.getrandbits(1)) for _ in range(6))
        seen.add((train, cast, flag))
        for module in (model, eager):
            module.train(train)
            module.linear.weight.requires_grad_(not frozen)
        x = rand(choice.randint(2, 5), 4).requires_grad_(wanted)
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            compare(model, eager, (x, flag), {}, rtol=2e-2, atol=2e-2)
    assert model.report().fallback == "none"
    assert exports(model) <= 2 * len(seen), "per mode, autocast and flag one graph for one size and one for all"
    reasons = " ".join(e.reason for e in model.report().exports)
    for words in ("train/eval mode changed", "autocast changed", "input 'flag' changed", "size 0 of input 'x'"):
        assert words in reasons, reasons


@pytest.mark.parametrize("value", [None, torch.zeros(3, 4, dtype=torch.bool)], ids=["None", "a mask"])
def test_the_reason_names_the_argument(value: Any) -> None:
    def forward(m: Lambda, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return m.linear(x) if mask is None else m.linear(x).masked_fill(mask, 0)

    model, eager = pair(Lambda(forward))
    other = None if value is not None else torch.zeros(3, 4, dtype=torch.bool)
    for mask in (other, value, other):
        torch.testing.assert_close(model(rand(3, 4).fill_(1), mask=mask), eager(rand(3, 4).fill_(1), mask=mask))
    texts = {None: "None", True: "bool[?, ?]"}
    old, new = texts[other is not None or None], texts[value is not None or None]
    assert [e.reason for e in model.report().exports] == ["first call", f"input 'mask' changed from {old} to {new}"]

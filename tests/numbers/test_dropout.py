"""Dropout: fast masks have PyTorch's statistics and obey torch's seed; dropout="torch" draws eager's masks."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

from tests import zoo
from tests.support import pair

DRAWS = 1_000_000


class Masked(nn.Module):
    """x * scale through dropout: the output shows the mask, the gradient of scale sums it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x * self.scale)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_fast_masks_have_the_mean_and_variance_of_pytorchs(p: float) -> None:
    model, eager = pair(Masked(p))
    x = torch.ones(1000, DRAWS // 1000)
    got, expected = model(x).detach(), eager(x).detach()
    # Five standard errors of a mean of DRAWS values that are 1/(1-p) with probability 1-p.
    bound = 5 * (p / (1 - p) / DRAWS) ** 0.5
    assert abs(got.mean() - expected.mean()) < 2 * bound
    assert abs(got.mean() - 1) < bound
    torch.testing.assert_close(got.var(), expected.var(), rtol=0.01, atol=0)
    assert set(got.unique().tolist()) == set(expected.unique().tolist())


def test_fast_masks_have_no_pattern() -> None:
    model, _ = pair(Masked(0.5))
    kept = (model(torch.ones(1000, 1000)) != 0).float().sub(0.5)
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.roll(4, 1), kept.t()):
        assert abs((kept * other).mean() * 4) < 5e-3, "elements that follow each other agree too often"
    assert (kept.mean(0).abs() < 0.1).all() and (kept.mean(1).abs() < 0.1).all()


@pytest.mark.parametrize("mode", ["fast", "torch"])
def test_manual_seed_repeats_a_run(mode: str) -> None:
    model, _ = pair(zoo.build("gpt2", dropout=0.2).module, dropout=mode)
    inputs = zoo.build("gpt2").inputs
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses = [model(**inputs).loss for _ in range(2)]
        model.zero_grad()
        sum(losses).backward()
        runs.append((*[loss.item() for loss in losses], next(model.parameters()).grad.sum().item()))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("mode", ["fast", "torch"])
def test_every_step_draws_anew(mode: str) -> None:
    model, _ = pair(Masked(0.5), dropout=mode)
    masks = [model(torch.ones(100)).detach() for _ in range(4)]
    assert len({tuple(m.tolist()) for m in masks}) == 4


def test_two_layers_draw_different_masks() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x * self.scale), self.second(x * self.scale)

    model, _ = pair(Two())
    a, b = model(torch.ones(1000))
    assert 0.4 < (a == b).float().mean() < 0.6


@pytest.mark.parametrize("mode", ["fast", "torch"])
def test_backward_uses_the_mask_of_its_forward(mode: str) -> None:
    model, _ = pair(Masked(0.5), dropout=mode)
    xs = [torch.randn(200, requires_grad=True) for _ in range(2)]
    outs = [model(x) for x in xs]
    for out in reversed(outs):
        out.sum().backward()
    for x, out in zip(xs, outs, strict=True):
        torch.testing.assert_close(x.grad, torch.where(out != 0, 2.0, 0.0))


def test_retained_backward_repeats_the_mask() -> None:
    model, _ = pair(Masked(0.5))
    x = torch.ones(200, requires_grad=True)
    out = model(x)
    first, second = (torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_torch_masks_are_eagers_bit_for_bit() -> None:
    model, eager = pair(Masked(0.3), dropout="torch")
    for size in (10, 1000, 77):
        torch.manual_seed(size)
        got = model(torch.ones(size, 3))
        after = torch.get_rng_state()
        torch.manual_seed(size)
        assert torch.equal(got, eager(torch.ones(size, 3)))
        assert torch.equal(after, torch.get_rng_state())


class Unread(nn.Module):
    """Most of what it drops nobody reads: PyTorch draws for it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            dropped = nn.functional.dropout(x * self.weight, 0.5, self.training)
            torch.rand_like(x)
        return dropped


def test_masks_that_nobody_reads_are_drawn() -> None:
    model, eager = pair(Unread(), dropout="torch")
    torch.manual_seed(1)
    got = model(torch.ones(10, 3))
    after = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(got, eager(torch.ones(10, 3)))
    assert torch.equal(after, torch.get_rng_state())


def test_evaluation_drops_nothing() -> None:
    model, _ = pair(Masked(0.5))
    x = torch.randn(50)
    assert torch.equal(model.eval()(x), x)


def test_the_rate_zero_and_one() -> None:
    x = torch.randn(50)
    assert torch.equal(pair(Masked(0.0))[0](x), x)
    assert torch.equal(pair(Masked(1.0))[0](x), torch.zeros(50))

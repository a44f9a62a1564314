"""ortmodule.optim.AdamW: torch's numbers and checkpoints, fused without being asked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ortmodule.optim import AdamW


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def _same(a: nn.Module, b: nn.Module) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"weight_decay": 0.3, "betas": (0.8, 0.95)}, {"maximize": True}]
)
def test_updates_equal_torchs(options: dict[str, object]) -> None:
    ours, theirs = _model(), _model()
    optimizer = AdamW(ours.parameters(), lr=0.05, **options)
    assert optimizer.param_groups[0]["fused"]
    _train(ours, optimizer, 5)
    _train(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.05, **options), 5)
    _same(ours, theirs)


def test_groups_are_chosen_one_by_one() -> None:
    real, imaginary = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = AdamW([{"params": [real]}, {"params": [imaginary], "lr": 0.1}])
    assert [g["fused"] for g in optimizer.param_groups] == [True, None]
    (real.sum() + imaginary.abs().sum()).backward()
    optimizer.step()
    assert torch.isfinite(real).all() and imaginary.abs().sum() < 3


def test_an_explicit_choice_is_kept() -> None:
    model = _model()
    assert AdamW(model.parameters(), fused=False).param_groups[0]["fused"] is False
    assert AdamW(model.parameters(), foreach=True).param_groups[0]["fused"] is None


@pytest.mark.parametrize("first", [AdamW, torch.optim.AdamW])
def test_checkpoints_cross_between_torchs_and_ours(first: type[torch.optim.Optimizer]) -> None:
    second = AdamW if first is torch.optim.AdamW else torch.optim.AdamW
    unbroken, broken = _model(), _model()
    _train(unbroken, torch.optim.AdamW(unbroken.parameters(), lr=0.05), 6)
    optimizer = first(broken.parameters(), lr=0.05)
    _train(broken, optimizer, 3)
    resumed = second(broken.parameters(), lr=0.9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _train(broken, resumed, 3, start=3)
    _same(unbroken, broken)
    if second is AdamW:
        assert resumed.param_groups[0]["fused"]


def test_wrong_arguments_raise_what_torch_raises() -> None:
    with pytest.raises(ValueError, match="Invalid learning rate"):
        AdamW(_model().parameters(), lr=-1.0)
    with pytest.raises(TypeError):
        AdamW(_model().parameters(), momentum=0.9)

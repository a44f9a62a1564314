"""optimizer_in_backward: the same numbers as steps of their own, and never all gradients at once."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule import ORTModule, optim

from .problems import same_bits

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (optim.AdamW, {"lr": 0.01}),
    (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.RMSprop, {"lr": 0.01}),
]
BATCH = torch.linspace(-1, 1, 64).reshape(8, 8)


class Tied(nn.Module):
    """One weight used twice, one not at all, one frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(2, 2)
        self.first.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).square().mean()


@pytest.mark.parametrize("wrap", [lambda m: m, ORTModule], ids=["eager", "ortmodule"])
@pytest.mark.parametrize(
    ("kind", "options"), KINDS, ids=lambda v: f"{v.__module__}.{v.__name__}" if isinstance(v, type) else ""
)
def test_backward_is_a_step(kind: Any, options: dict[str, Any], wrap: Any) -> None:
    one, two = Tied(), Tied()
    first, second = wrap(one), wrap(two)
    inside = optim.optimizer_in_backward(first, kind, **options)
    plain = kind([p for p in two.parameters() if p.requires_grad], **options)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (inside, plain)]
    for _ in range(4):
        first(BATCH).backward()
        assert all(p.grad is None for p in one.parameters())
        inside.step()
        inside.zero_grad()
        plain.zero_grad()
        second(BATCH).backward()
        plain.step()
        for schedule in schedules:
            schedule.step()
    same_bits(one.parameters(), two.parameters())
    resumed = kind([p for p in two.parameters() if p.requires_grad], **options)
    resumed.load_state_dict(copy.deepcopy(inside.state_dict()))
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.01 * 0.5**4)


def test_gradients_are_gone_before_the_next_are_there() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    optim.optimizer_in_backward(model, optim.AdamW, lr=0.01)
    seen: list[int] = []
    for layer in model:
        layer.weight.register_hook(lambda _: seen.append(sum(p.grad is not None for p in model.parameters())))
    model(BATCH).sum().backward()
    assert len(seen) == 6 and max(seen) <= 1


def test_groups_later_parameters_and_the_way_back() -> None:
    model, more = nn.Linear(8, 8), nn.Linear(8, 8)
    inside = optim.optimizer_in_backward(
        [{"params": [model.weight], "lr": 0.0}, {"params": [model.bias]}], optim.SGD, lr=0.1
    )
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    inside.add_param_group({"params": list(more.parameters()), "lr": 1.0})
    other = more.weight.detach().clone()
    more(model(BATCH)).sum().backward()
    assert (
        torch.equal(model.weight, weight) and not torch.equal(model.bias, bias) and not torch.equal(more.weight, other)
    )
    optimizer = inside.remove()
    bias = model.bias.detach().clone()
    model(BATCH).sum().backward()
    assert model.bias.grad is not None and torch.equal(model.bias, bias)
    optimizer.step()
    assert not torch.equal(model.bias, bias)


def test_copies_have_hooks_of_their_own() -> None:
    model = nn.Linear(8, 8)
    inside = optim.optimizer_in_backward(model, optim.SGD, lr=0.1)
    for other in (copy.deepcopy(inside), pickle.loads(pickle.dumps(inside))):
        p = other.param_groups[0]["params"][0]
        before = p.detach().clone()
        p.sum().backward()
        assert p.grad is None and not torch.equal(p, before)


def test_an_error_of_a_step_ends_the_backward() -> None:
    model = nn.Linear(8, 8)
    inside = optim.optimizer_in_backward(model, optim.AdamW, lr=0.1)
    model(BATCH).sum().backward()
    inside.state[model.weight]["step"] = torch.zeros(3)
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="its step is no single float"):
        model(BATCH).sum().backward()
    assert torch.equal(model.weight, before)
    assert [group["params"] for group in inside.param_groups] == [list(model.parameters())]


def test_lbfgs_is_refused() -> None:
    with pytest.raises(ValueError, match="evaluates the loss anew"):
        optim.optimizer_in_backward(nn.Linear(2, 2), torch.optim.LBFGS)

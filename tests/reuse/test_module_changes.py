"""A module that changes between two calls is never run as it was before, however steady the calls are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import ORTModule
from tests.support import Lambda, assert_same_gradients, pair

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def inner(module: nn.Module) -> nn.Module:
    return getattr(module, "module", module)


def assert_follows(module: nn.Module, change: Callable[[nn.Module], None]) -> None:
    """Three equal calls, the change, three more: ORTModule gives eager's results and gradients in all of them."""
    model, eager = pair(module)
    for step in range(6):
        if step == 3:
            change(inner(model))
            change(inner(eager))
        outs = []
        for m in (model, eager):
            m.zero_grad()
            out = m(X)
            if out.requires_grad:
                out.square().mean().backward()
            outs.append(out.detach())
        torch.testing.assert_close(*outs, msg=lambda t, n=step: f"call {n}: {t}")
        assert_same_gradients(model, eager)


def sequential() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def set_attribute(name: str, value: Callable[[], object]) -> Callable[[nn.Module], None]:
    return lambda m: setattr(m, name, value())


CHANGES: dict[str, Callable[[nn.Module], None]] = {
    "a layer appended": lambda m: m.append(nn.Sigmoid()),
    "a layer removed": lambda m: m.pop(1),
    "a layer replaced": lambda m: m.__setitem__(1, nn.ReLU()),
    "a bias taken away": lambda m: setattr(m[0], "bias", None),
    "a bias taken away and given back": lambda m: (
        setattr(m[0], "bias", None),
        m(X),
        m(X),
        m[0].register_parameter("bias", nn.Parameter(torch.ones(4))),
    ),
    "two weights tied": lambda m: setattr(m[2], "weight", m[0].weight),
    "a parameter replaced": lambda m: setattr(m[0], "weight", nn.Parameter(torch.full((4, 4), 0.2))),
    "a parameter's data replaced": lambda m: setattr(m[0].weight, "data", torch.full((4, 4), 0.2)),
    "a layer of another width": lambda m: m.__setitem__(2, nn.Linear(4, 4).requires_grad_(False)),
    "double precision and back": lambda m: m.double().float(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_layers_is_followed(name: str) -> None:
    def change(module: nn.Module) -> None:
        torch.manual_seed(7)
        CHANGES[name](module)

    assert_follows(sequential(), change)


def with_attributes() -> Lambda:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * m.scale * m.factors[0] * m.options["gain"] + m.shift + m.table

    module = Lambda(forward)
    module.scale, module.factors, module.options, module.shift = 2.0, [3.0], {"gain": 0.5}, torch.ones(4)
    return module


ATTRIBUTES: dict[str, Callable[[nn.Module], object]] = {
    "a number": lambda m: setattr(m, "scale", 5.0),
    "an element of a list": lambda m: m.factors.__setitem__(0, -1.0),
    "another list": lambda m: setattr(m, "factors", [7.0]),
    "an entry of a dict": lambda m: m.options.update(gain=4.0),
    "another tensor": lambda m: setattr(m, "shift", torch.full((4,), 9.0)),
    "a tensor's elements": lambda m: m.shift.fill_(4),
    "a buffer": lambda m: setattr(m, "table", torch.full((4,), 3.0)),
    "a buffer's elements": lambda m: m.table.fill_(6),
    "the forward's function": lambda m: setattr(m, "function", lambda m, x: m.linear(x) - 1),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_change_of_an_attribute_is_followed(name: str) -> None:
    assert_follows(with_attributes(), ATTRIBUTES[name])


def test_weights_may_be_tied_and_untied_at_any_time() -> None:
    model, eager = pair(sequential())
    for m in (model, eager):
        inner(m)[2].weight = inner(m)[0].weight
    for step in range(6):
        for m in (model, eager):
            torch.manual_seed(step)
            if step in (2, 5):
                inner(m)[2].weight = nn.Parameter(torch.randn(4, 4))
            elif step == 4:
                inner(m)[0].weight = inner(m)[2].weight
            m.zero_grad()
            m(X).square().mean().backward()
        assert_same_gradients(model, eager)


class Optional(nn.Module):
    """Asks of a parameter and a buffer only whether they are there, or how long they are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_parameter("extra", None)
        self.register_buffer("levels", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y = y if self.extra is None else y + 7
        return y if self.levels is None else y * self.levels.shape[0]


PRESENCE: dict[str, Callable[[nn.Module], None]] = {
    "a buffer goes": lambda m: setattr(m, "levels", None),
    "a buffer of another size": lambda m: setattr(m, "levels", torch.ones(3)),
    "a parameter comes": lambda m: setattr(m, "extra", nn.Parameter(torch.ones(1))),
    "a parameter comes and goes": lambda m: (
        setattr(m, "extra", nn.Parameter(torch.ones(1))), m(X), m(X), setattr(m, "extra", None)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESENCE)
def test_what_is_there_and_what_is_not_is_followed(name: str) -> None:
    assert_follows(Optional(), PRESENCE[name])


def test_a_parameter_that_is_an_output_is_the_present_one() -> None:
    model, _ = pair(Lambda(lambda m, x: (m.linear(x), m.linear.weight)))
    for _ in range(3):
        assert model(X)[1] is model.linear.weight
    model.linear.weight = nn.Parameter(torch.ones(4, 4))
    for _ in range(3):
        assert model(X)[1] is model.linear.weight


def test_steady_calls_still_see_other_arguments() -> None:
    model, eager = pair(Lambda(lambda m, x, k, *, flag=False, extra=None: m.linear(x) * k + bool(flag)))
    calls = [
        lambda m: m(X, 1),
        lambda m: m(X, 1),
        lambda m: m(X, True),
        lambda m: m(X, 1.0),
        lambda m: m(X, 2),
        lambda m: m(X, k=2),
        lambda m: m(X, 2, flag=True),
        lambda m: m(X.double().float()[:2], 2),
        lambda m: m(X[:1], 1),
        lambda m: m(X[:0], 1),
        lambda m: m(X.t().contiguous().t(), 1),
        lambda m: m(X, 1, extra=None),
    ]
    for call in calls * 2:
        torch.testing.assert_close(call(model), call(eager))


class Holding(nn.Module):
    """A frozen layer that the forward has from elsewhere than the tree."""

    def __init__(self, held: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held(self)(self.linear(x))


@pytest.mark.parametrize("where", ["an attribute that is no child", "a list", "a dictionary"])
def test_a_layer_from_outside_in_the_place_of_one_of_the_module_s_own(where: str) -> None:
    kept: Any = [None] if where == "a list" else {0: None}
    eager = Holding(
        (lambda m: m.__dict__["other"]) if where == "an attribute that is no child" else (lambda m: kept[0])
    )
    kept[0] = eager.__dict__["other"] = eager.frozen
    model, x = ORTModule(eager), torch.randn(2, 4)
    for _ in range(3):
        model(x).sum().backward()
    outside = nn.Linear(4, 4)
    outside.load_state_dict(eager.frozen.state_dict())
    kept[0] = eager.__dict__["other"] = outside
    model(x).sum().backward()
    assert outside.weight.grad is not None and eager.frozen.weight.grad is None


class CountsItsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.parts = nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4))
        self.register_buffer("scale", torch.ones(4))
        self.parts[0].register_buffer("more", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * len(self.state_dict())


def test_what_belongs_to_a_state_dict_is_heard_where_the_forward_makes_one() -> None:
    eager = CountsItsState()
    model = ORTModule(eager)
    x, counted = torch.randn(3, 4), []
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: eager.register_buffer("scale", torch.ones(4), persistent=False),
        lambda: eager.parts[0].register_buffer("more", torch.ones(3), persistent=False),
        lambda: eager.parts[0]._non_persistent_buffers_set.clear(),
        lambda: eager.linear._register_state_dict_hook(lambda module, state, prefix, meta: state.clear()),
    ]
    for change in changes:
        change()
        for _ in range(2):
            torch.testing.assert_close(model(x), eager(x))
        counted.append(len(eager.state_dict()))
    assert len(set(counted)) == 4 and model.report().fallback == "none"

"""Forwards that draw random numbers which no graph can draw: each step must draw anew, as eager does.

Not here: torch's own draws (tests/numbers/test_dropout.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ortmodule import CaptureError, Options, ORTModule
from tests.support import assert_same_gradients, mlp


class Outer(nn.Module):
    """A network, and what `draw` makes of it; it owns one generator of each kind."""

    def __init__(self, draw: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.net = mlp()
        self.draw = draw
        self.python, self.numpy = random.Random(5), np.random.default_rng(5)
        self.torch = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(self, self.net(x))


def forked(m: Outer, h: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(11)
        h = h + torch.rand(3)
    return h * torch.rand(3)


def drawn_again(m: Outer, h: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    h = h + torch.rand(3)
    torch.set_rng_state(state)
    return h * torch.rand(3)


def seeded(m: Outer, h: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(11)
    return h + torch.rand(3)


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "random.random": lambda m, h: h * 2 if random.random() < 0.5 else h * 3,
    "random.choice": lambda m, h: h * random.choice([2.0, 3.0, 5.0]),
    "numpy.random": lambda m, h: h * float(np.random.rand()),
    "a random.Random of its own": lambda m, h: h * m.python.uniform(1, 2),
    "a numpy Generator of its own": lambda m, h: h * float(m.numpy.random()),
    "a torch Generator of its own": lambda m, h: h + torch.rand(3, generator=m.torch),
    "manual_seed": seeded,
    "fork_rng": forked,
    "set_rng_state": drawn_again,
}


def run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    outputs = []
    for _ in range(6):
        outputs.append(module(x))
        outputs[-1].sum().backward()
    return [*outputs, torch.rand(2), torch.tensor(random.random()), torch.tensor(np.random.rand())]


@pytest.mark.filterwarnings("ignore:Outer runs partly")
@pytest.mark.parametrize("name", DRAWS)
def test_every_step_draws_anew(name: str) -> None:
    torch.manual_seed(0)
    eager: Any = Outer(DRAWS[name])
    other: Any = Outer(DRAWS[name])
    other.load_state_dict(eager.state_dict())
    model = ORTModule(other)
    x = torch.randn(5, 4)
    for a, b in zip(run(model, x), run(eager, x), strict=True):
        torch.testing.assert_close(a, b)
    assert_same_gradients(model, eager)
    report = model.report()
    assert report.fallback == "partial" and report.sessions, report  # the network inside runs in the engine


def test_the_reason_names_the_generator_or_the_line() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(CaptureError, match="module random"):
        ORTModule(Outer(DRAWS["random.random"]), options=Options(fallback="error"))(x)
    with pytest.raises(CaptureError, match="the attribute .*numpy"):
        ORTModule(Outer(DRAWS["a numpy Generator of its own"]), options=Options(fallback="error"))(x)
    with pytest.raises(CaptureError, match=r"torch.manual_seed[^\n]*\n.*torch.manual_seed\(11\)"):
        ORTModule(Outer(seeded), options=Options(fallback="error"))(x)


def test_a_dtype_without_onnx_form_is_a_reason_not_a_crash() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.chalf().real.float()

    x = torch.randn(3)
    with pytest.raises(CaptureError, match="complex32"):
        ORTModule(Halves(), options=Options(fallback="error"))(x)
    with pytest.warns(UserWarning, match="complex32"):
        torch.testing.assert_close(ORTModule(Halves())(x), Halves()(x))

"""Settings of torch's that are asked for by a type of device, and its context managers, which a program may keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ortmodule import Options, ORTModule
from tests.support import Lambda, exports


@pytest.fixture(autouse=True)
def autocast_as_it_was() -> Iterator[None]:
    before = torch.get_autocast_dtype("cpu")
    yield
    torch.set_autocast_dtype("cpu", before)


def assert_followed(forward: Callable[[Lambda, torch.Tensor], Any], change: Callable[[], None]) -> None:
    """A steady graph, another after the change; both in the engine."""
    eager = Lambda(forward)
    model = ORTModule(eager, options=Options(fallback="error"))
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    change()
    for _ in range(2):
        changed, expected = model(x), eager(x)
        torch.testing.assert_close(changed, expected)
        eager.zero_grad()
        expected.sum().backward()
        gradient = eager.linear.weight.grad
        eager.zero_grad()
        changed.sum().backward()
        torch.testing.assert_close(eager.linear.weight.grad, gradient)
    assert exports(model) == 2


def half_from_now_on() -> None:
    torch.set_autocast_dtype("cpu", torch.float16)


def asks(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).to(torch.get_autocast_dtype("cpu"))


def opens(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return m.linear(x)


@pytest.mark.parametrize("forward", [asks, opens])
def test_the_dtype_that_autocast_will_have_is_followed(forward: Callable[[Lambda, torch.Tensor], Any]) -> None:
    assert_followed(forward, half_from_now_on)


def test_whether_a_profiler_runs_is_followed() -> None:
    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) * (2 if torch.autograd._profiler_enabled() else 1)

    profiler = torch.profiler.profile()
    try:
        assert_followed(forward, profiler.start)
    finally:
        profiler.stop()


@pytest.mark.parametrize("attribute, value", [("fast_dtype", torch.float16), ("_enabled", False)])
def test_a_kept_autocast_that_changes_is_followed(attribute: str, value: Any) -> None:
    kept = torch.autocast("cpu", dtype=torch.bfloat16)

    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        with kept:
            return m.linear(x)

    assert_followed(forward, lambda: setattr(kept, attribute, value))


def test_an_attribute_of_a_kept_autocast_is_followed() -> None:
    kept = torch.autocast("cpu", dtype=torch.bfloat16)
    assert_followed(lambda m, x: m.linear(x).to(kept.fast_dtype), lambda: setattr(kept, "fast_dtype", torch.float64))


def test_a_kept_gradient_mode_that_changes_is_followed() -> None:
    kept = torch.set_grad_enabled(True)

    def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        with kept:
            y = m.linear(x)
        return m.linear(x) * 2 + y

    assert_followed(forward, lambda: setattr(kept, "mode", False))

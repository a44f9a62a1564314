"""Values that forward reads from an object that the module holds: a change is seen at the next call."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributions import Uniform
from transformers import GPT2Config

from ortmodule import ORTModule
from tests import zoo
from tests.support import Lambda, assert_same_gradients, exports, pair


@dataclasses.dataclass
class Inner:
    shift: float = 1.0


@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    mode: str = "plain"
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    inner: Inner = dataclasses.field(default_factory=Inner)
    unused: int = 0

    @property
    def doubled(self) -> float:
        return 2 * self.scale


def forward(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    s = m.settings
    y = m.linear(x) * s.doubled + s.inner.shift * sum(s.sizes)
    return y.tanh() if s.mode == "tanh" else y


def with_settings(settings: Any) -> Lambda:
    module = Lambda(forward)
    module.settings = settings
    return module


CHANGES: dict[str, Callable[[Any], None]] = {
    "a number": lambda m: setattr(m.settings, "scale", 5.0),
    "a string": lambda m: setattr(m.settings, "mode", "tanh"),
    "a list in place": lambda m: m.settings.sizes.append(3),
    "a nested number": lambda m: setattr(m.settings.inner, "shift", -1.0),
    "a nested object": lambda m: setattr(m.settings, "inner", Inner(4.0)),
    "the object": lambda m: setattr(m, "settings", Settings(scale=-1.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_followed_there_and_back(name: str) -> None:
    model, eager = pair(with_settings(Settings()))
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    for module in (model.module, eager):
        CHANGES[name](module)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2
    for module in (model.module, eager):
        module.settings = Settings()
    torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2, "the first graph holds again"


def test_what_forward_does_not_read_may_change() -> None:
    model, _ = pair(with_settings(Settings()))
    x = torch.randn(3, 4)
    model(x)
    model.settings.unused = 9
    model(x)
    assert exports(model) == 1


def test_a_plain_namespace_is_watched_too() -> None:
    settings = types.SimpleNamespace(doubled=1.0, sizes=[1], mode="plain", inner=types.SimpleNamespace(shift=0.5))
    model, eager = pair(with_settings(settings))
    x = torch.randn(3, 4)
    for scale in (1.0, 3.0, 3.0, 1.0):
        for module in (model.module, eager):
            module.settings.inner.shift = scale
        torch.testing.assert_close(model(x), eager(x))


def test_a_configuration_of_transformers_is_watched() -> None:
    sample = zoo.build("gpt2")
    eager = copy.deepcopy(sample.module)
    model = ORTModule(sample.module)
    before = vars(GPT2Config).get("__getattribute__")
    for wanted in (False, True, True):
        for module in (model.module, eager):
            module.config.output_hidden_states = wanted
        ours, theirs = model(**sample.inputs), eager(**sample.inputs)
        torch.testing.assert_close(ours.loss, theirs.loss)
        assert (ours.hidden_states is None) == (theirs.hidden_states is None)
    assert model.report().fallback == "none"
    assert vars(GPT2Config).get("__getattribute__") is before, "the class is as it was"


def test_a_default_that_the_first_call_chooses_stays_chosen() -> None:
    def choose(m: Lambda, x: torch.Tensor) -> torch.Tensor:
        if m.settings.mode is None:
            m.settings.mode = "tanh" if x.shape[0] > 1 else "plain"
        return m.linear(x).tanh() if m.settings.mode == "tanh" else m.linear(x)

    module = Lambda(choose)
    module.settings = Settings(mode=None)  # type: ignore[arg-type]
    model, eager = pair(module)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), eager(x))
    assert exports(model) == 2, "the one that chooses, and the one that finds a choice"
    assert model.settings.mode == eager.settings.mode == "tanh"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: dist.is_initialized(),
        lambda: dist.is_available() and dist.is_initialized() and dist.get_world_size() == 1,
        lambda: dist.group.WORLD is not None,
    ],
)
def test_a_process_group_that_comes_and_goes(ask: Callable[[], bool]) -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) * (2.0 if ask() else 1.0)))
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x), eager(x))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.testing.assert_close(model(x), eager(x))
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(model(x), eager(x))


def test_what_is_computed_has_a_history_and_a_leaf_has_none() -> None:
    model, eager = pair(Lambda(lambda m, x: m.linear(x) * (2.0 if x.grad_fn is None else 3.0)))
    leaf = torch.randn(3, 4, requires_grad=True)
    for x in (leaf, leaf * 2, leaf, leaf + 1, leaf.detach()):
        torch.testing.assert_close(model(x), eager(x))


@torch.no_grad()
def _squashed(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def _with_no_grad(m: Lambda, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    with torch.no_grad():
        shift = y.tanh()
    return y * y + shift * y


PARTS: dict[str, Callable[[Lambda, torch.Tensor], torch.Tensor]] = {
    "no_grad": _with_no_grad,
    "a decorator": lambda m, x: (y := m.linear(x)) * y + _squashed(y) * y,
    "a distribution": lambda m, x: (y := m.linear(x)) + ((s := Uniform(y, y + 1.0).sample()) - s.detach()),
    "none": lambda m, x: m.linear(x).square(),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_part_without_gradients_is_one_after_a_first_call_without_any(part: str, mode: Any) -> None:
    model, eager = pair(Lambda(PARTS[part]))
    x = torch.randn(3, 4)
    for _ in range(2):
        with mode():
            torch.testing.assert_close(model(x), eager(x))
    for m in (model, eager):
        m(x).sum().backward()
    assert_same_gradients(model, eager)
    assert exports(model) == (1 if part == "none" else 2)


def test_gradients_enabled_within_inference_mode_give_none() -> None:
    class Asking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y * (2 if y.requires_grad else 3)

    eager = Asking(4, 4)
    model, x = ORTModule(eager), torch.ones(3, 4)
    for _ in range(2):
        torch.testing.assert_close(model(x), eager(x))
        with torch.inference_mode(), torch.enable_grad():
            found, wanted = model(x), eager(x)
        torch.testing.assert_close(found, wanted)
        assert not found.requires_grad
    assert model.report().fallback == "none"

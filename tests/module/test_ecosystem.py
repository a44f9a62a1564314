"""What trainers and their tools do to a model: look at its class and signature, replace its forward, average it."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import types
from typing import Any

import pytest
import torch
import torch.nn as nn

from tests.support import Lambda, assert_same_gradients, exports, mlp, pair

X = torch.linspace(-1, 1, 20).reshape(5, 4)


class Special(Lambda):
    """A class with a default that instances override, and a private attribute."""

    _disabled = False

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._factor = 2.0

    def forward(self, x: torch.Tensor, scale: float = 1.0, *, labels: torch.Tensor | None = None) -> torch.Tensor:
        """The forward's own words."""
        h = self.linear(x) * scale * self._factor
        return x if self._disabled else h


def test_the_wrapper_shows_the_class_and_the_signature_of_the_module() -> None:
    model, eager = pair(Special())
    assert isinstance(model, Special) and type(model).__name__ == "ORTModule"
    assert model.__class__ is Special and isinstance(model, nn.Module)
    assert inspect.signature(model.forward) == inspect.signature(eager.forward)
    assert model.forward.__doc__ == "The forward's own words."
    assert model.forward == model.forward and hash(model.forward) == hash(model.forward)
    torch.testing.assert_close(model.forward(X), eager(X))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_wrappers_too(again: Any) -> None:
    model, eager = pair(mlp())
    model(X)
    other = again(model)
    assert type(other) is type(model)
    other(X).square().mean().backward()
    eager(X).square().mean().backward()
    assert_same_gradients(other, eager)
    assert len(other.report().sessions) == 1


def test_a_forward_that_is_put_around_the_old_one_runs_around_the_engine() -> None:
    """As Accelerate does for mixed precision, and undoes."""
    model, eager = pair(mlp())
    old = model.forward
    inner = model.forward.__func__

    @functools.wraps(inner)
    def autocast(*args: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return inner(*args)

    model._original_forward = old
    model.forward = types.MethodType(autocast, model)
    out = model(X)
    assert out.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(out, eager(X))
    assert "forward" not in vars(model.module) and not hasattr(model.module, "_original_forward")
    del model.forward
    assert model(X).dtype == torch.float32 and exports(model) == 2


def test_a_private_attribute_and_a_default_of_the_class_are_part_of_the_graph() -> None:
    model, eager = pair(Special())
    for change in ({}, {"_disabled": True}, {"_disabled": False}, {"_factor": 3.0}, {"_disabled": True}):
        for module in (model, eager):
            for name, value in change.items():
                setattr(module, name, value)
        torch.testing.assert_close(model(X), eager(X))
    assert exports(model) <= 5


def test_an_averaged_model_follows_and_runs_in_the_engine() -> None:
    model, eager = pair(mlp())
    averaged = [torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
                for m in (model, eager)]  # fmt: skip
    for module, average in zip((model, eager), averaged, strict=True):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=4)
        for _ in range(3):
            optimizer.zero_grad()
            module(X).square().mean().backward()
            nn.utils.clip_grad_value_(module.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            average.update_parameters(module)
    torch.testing.assert_close(averaged[0](X), averaged[1](X))
    assert len(averaged[0].module.report().sessions) == 1
    for p, q in zip(averaged[0].parameters(), averaged[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


class Cache:
    """Not a pytree: an object that keeps tensors in lists of other objects."""

    def __init__(self, values: list[torch.Tensor]) -> None:
        self.layers = [types.SimpleNamespace(kind="entry"), *values]
        self.length = len(values)

    def total(self) -> torch.Tensor:
        return sum(t.sum() for t in self.layers[1:])  # type: ignore[return-value]


def test_a_result_may_be_an_object_that_keeps_tensors() -> None:
    model, eager = pair(Lambda(lambda m, x: {"y": m.linear(x), "cache": Cache([m.linear(x) * 2, x])}))
    for scale in (1.0, 2.0):
        got, expected = model(X * scale), eager(X * scale)
        assert isinstance(got["cache"], Cache) and got["cache"].length == 2
        torch.testing.assert_close(got["cache"].total(), expected["cache"].total())
    for result in (got, expected):
        (result["y"].mean() + result["cache"].total()).backward()
    assert_same_gradients(model, eager)
    assert exports(model) == 1


def test_a_wrapped_lightning_module_is_told_to_wrap_its_network() -> None:
    base = type("LightningModule", (nn.Linear,), {"__module__": "lightning.pytorch.core.module"})
    with pytest.warns(UserWarning, match="wrap the network that it holds"):
        pair(type("Mine", (base,), {})(2, 2))

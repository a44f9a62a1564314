"""Options(outputs="loss"): what comes back, in which structure, and what is computed."""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ortmodule import InvalidArgumentError, Options, ORTModule

Pair = collections.namedtuple("Pair", ["loss", "logits"])


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    count: int = 0


class Classifier(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)
        self.shape = shape

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.body(x).relu())
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return self.shape(loss, logits)


SHAPES = {
    "tuple": (lambda loss, logits: (loss, logits), lambda r: (r[0], r[1])),
    "dict": (lambda loss, logits: {"loss": loss, "x": {"logits": logits}}, lambda r: (r["loss"], r["x"]["logits"])),
    "named": (Pair, lambda r: (r.loss, r.logits)),
    "dataclass": (lambda loss, logits: Result(logits, loss, 3), lambda r: (r.loss, r.logits)),
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(4, 6), torch.randint(5, (4,))


@pytest.mark.parametrize("name", SHAPES)
def test_other_outputs_are_none_in_the_same_structure(name: str) -> None:
    make, read = SHAPES[name]
    plain = Classifier(make)
    model = ORTModule(copy.deepcopy(plain), options=Options(outputs="loss", fallback="error"))
    x, labels = batch()
    for _ in range(2):  # the second call is the native one
        plain.zero_grad()
        model.zero_grad()
        wanted, result = plain(x, labels), model(x, labels)
        assert type(result) is type(wanted)
        loss, logits = read(result)
        assert logits is None
        torch.testing.assert_close(loss, read(wanted)[0])
        (2 * loss).backward()
        (2 * read(wanted)[0]).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_call_without_gradients_returns_everything() -> None:
    make, read = SHAPES["tuple"]
    model = ORTModule(Classifier(make), options=Options(outputs="loss", fallback="error"))
    x, labels = batch()
    assert read(model(x, labels))[1] is None
    with torch.no_grad():
        assert read(model(x, labels))[1].shape == (4, 5)
        assert model(x)[0] is None
    assert read(model(x, labels))[1] is None


def test_a_module_without_a_loss_is_an_error() -> None:
    model = ORTModule(Classifier(lambda loss, logits: logits), options=Options(outputs="loss"))
    x, labels = batch()
    with pytest.raises(InvalidArgumentError, match="returns its loss"):
        model(x, labels)
    with torch.no_grad():
        assert model(x).shape == (4, 5)


def test_buffers_are_still_written() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.head(self.norm(x))
            return y.square().mean(), y

    plain = Normed()
    model = ORTModule(copy.deepcopy(plain), options=Options(outputs="loss", fallback="error"))
    x, _ = batch()
    loss, y = model(x)
    plain(x)
    assert y is None and loss.dim() == 0
    torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)


def test_the_variable_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_OUTPUTS", "loss")
    make, read = SHAPES["tuple"]
    assert read(ORTModule(Classifier(make))(*batch()))[1] is None
    monkeypatch.setenv("ORTMODULE_OUTPUTS", "losses")
    with pytest.raises(InvalidArgumentError, match="did you mean 'loss'"):
        Options()


def test_parts_of_a_module_that_is_not_captured_whole_return_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_OUTPUTS", "loss")

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return y.sum() if float(y.detach().sum()) > -1 else y.mean()

    with pytest.warns(UserWarning, match=re.escape("runs partly in PyTorch")):
        ORTModule(Broken())(batch()[0]).backward()

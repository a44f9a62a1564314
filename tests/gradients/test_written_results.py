"""A result that is written where nobody counts writes, through an array of numpy's or an address, before the backward:
the gradients are eager's, which keeps something else than the result itself.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.dlpack import to_dlpack

from ortmodule import Options, ORTModule


class Scores(nn.Module):
    """Scores and their loss; `viewed`: the loss reads them in another shape."""

    def __init__(self, viewed: bool) -> None:
        super().__init__()
        self.inner, self.head, self.viewed = nn.Linear(8, 16), nn.Linear(16, 12), viewed

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(torch.tanh(self.inner(x)))
        if self.viewed:
            return F.cross_entropy(scores.view(-1, 12), labels.view(-1)), scores
        return F.cross_entropy(scores.transpose(1, 2), labels), scores


class Cut(nn.Module):
    """What a ReLU is taken of, which it does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 12)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.inner(x)
        return F.cross_entropy(self.head(torch.relu(hidden)).view(-1, 12), labels.view(-1)), hidden


def _array(result: torch.Tensor) -> None:
    result.detach().numpy()[:] = 7


def _part_of_an_array(result: torch.Tensor) -> None:
    result.detach()[1:, ::2].numpy()[:] -= 3


def _address(result: torch.Tensor) -> None:
    ctypes.memset(result.data_ptr(), 0, result.nbytes)


def _dlpack(result: torch.Tensor) -> None:
    torch.from_dlpack(to_dlpack(result.detach())).neg_()


def _data(result: torch.Tensor) -> None:
    result.data.mul_(3)


WRITES = [_array, _part_of_an_array, _address, _dlpack, _data]
MODELS = {"scores": lambda: Scores(False), "viewed scores": lambda: Scores(True), "cut": Cut}


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 6, 8), torch.randint(0, 12, (4, 6))


@pytest.fixture(params=MODELS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    plain = MODELS[request.param]()
    return plain, ORTModule(copy.deepcopy(plain), options=Options(outputs="all", fallback="error"))


def _gradients(model: Any, steps: Callable[[torch.Tensor, torch.Tensor], None]) -> list[torch.Tensor]:
    model.zero_grad()
    steps(*model(*_batch()))
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("write", WRITES)
def test_a_written_result_does_not_change_gradients(write: Callable[[torch.Tensor], None], pair: Any) -> None:
    def steps(loss: torch.Tensor, result: torch.Tensor) -> None:
        write(result)
        loss.backward()

    for _ in range(3):
        torch.testing.assert_close(_gradients(pair[1], steps), _gradients(pair[0], steps))


@pytest.mark.parametrize("write", WRITES)
def test_one_that_is_written_between_two_backwards_does_not(write: Callable[[torch.Tensor], None], pair: Any) -> None:
    def steps(loss: torch.Tensor, result: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        write(result)
        loss.backward()

    for _ in range(2):
        torch.testing.assert_close(_gradients(pair[1], steps), _gradients(pair[0], steps))


@pytest.mark.parametrize("kept", ["the result", "a view", "a view without history", "a written result"])
def test_a_result_that_somebody_has_is_as_it_was_after_the_backward(kept: str, pair: Any) -> None:
    seen: list[list[torch.Tensor]] = []
    for model in pair:
        own = []
        for _ in range(3):
            loss, result = model(*_batch())
            if kept == "a written result":
                _part_of_an_array(result)
            shown = result.transpose(0, 1) if kept == "a view" else result.detach() if "without" in kept else result
            del result
            loss.backward()
            own.append(shown.detach().clone())
        seen.append(own)
    torch.testing.assert_close(seen[1], seen[0])

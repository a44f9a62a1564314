"""Branches on what integer inputs hold are asked at each call; there is a graph for each answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from ortmodule import Options, ORTModule
from tests.support import assert_same_gradients


class Model(nn.Module):
    """Two layers, between which `body` runs: body(model, hidden, ids)."""

    def __init__(self, body: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("limit", torch.tensor(3))
        self.body = body

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.second(self.body(self, self.first(x), ids)).sum()


def compare(model: ORTModule, eager: nn.Module, ids: torch.Tensor, **context: Any) -> None:
    """One step of both on the same input."""
    x = torch.randn(*ids.shape, 4)
    ids_eager = ids.clone()
    for module in (model, eager):
        module.zero_grad()
    got, want = model(x, ids), eager(x, ids_eager)
    assert torch.equal(ids, ids_eager), context
    torch.testing.assert_close(got, want)
    got.backward()
    want.backward()
    assert_same_gradients(model, eager)


def pair(body: Callable[..., torch.Tensor], **options: Any) -> tuple[ORTModule, nn.Module]:
    module = Model(body)
    return ORTModule(module, options=Options(**options)), copy.deepcopy(module)


def masked(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    mask = (torch.tensor(1.0) - (ids > 0).float()) * -10.0
    if (mask < 0).any().item():
        hidden = hidden + mask[..., None]
    if not (ids == 9).any():
        return hidden
    return hidden.tanh()


def test_there_is_one_graph_for_each_answer() -> None:
    model, eager = pair(masked, fallback="error")
    calls = [torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 0, 2], [9, 0, 1]]), torch.tensor([[0, 1, 2]] * 2)]
    for step in range(9):
        compare(model, eager, calls[step % 3], step=step)
    report = model.report()
    assert report.fallback == "none" and len(report.exports) == 3
    assert "if (mask < 0).any().item(): is False" in report.exports[1].reason


def test_the_answers_hold_at_other_sizes() -> None:
    model, eager = pair(masked, fallback="error")
    for length in (3, 5, 4, 7, 6):
        compare(model, eager, torch.ones(2, length, dtype=torch.long))
        compare(model, eager, torch.zeros(2, length, dtype=torch.long))
    assert len(model.report().exports) == 4


def test_a_failed_assertion_is_the_callers_and_spoils_nothing() -> None:
    def checked(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        assert (ids >= 0).all(), "ids below zero"
        return hidden

    model, eager = pair(checked)
    compare(model, eager, torch.ones(2, 3, dtype=torch.long))
    for ids in (torch.full((2, 3), -1), torch.full((2, 5), -1)):
        with pytest.raises(AssertionError, match="ids below zero"):
            model(torch.randn(*ids.shape, 4), ids)
    for length in (3, 5, 6):
        compare(model, eager, torch.ones(2, length, dtype=torch.long))
    assert model.report().fallback == "none" and len(model.report().exports) == 2


def written(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    ids = ids.clone()
    first = (ids == 5).any()
    row = ids[1]
    ids[0].zero_()
    ids[1:, 1:] -= 1
    if row.any():
        hidden = hidden.tanh()
    return hidden * 2 if first else hidden


def written_by_the_forward(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    before = bool((ids == 1).any())
    ids.masked_fill_(ids == 5, 2)
    return hidden.tanh() if before or (ids == 2).any() else hidden


@pytest.mark.parametrize("body", [written, written_by_the_forward])
def test_what_was_written_before_counts(body: Callable[..., torch.Tensor]) -> None:
    model, eager = pair(body, fallback="error")
    for value in (0, 1, 5, 0, 1, 2, 5):
        compare(model, eager, torch.full((2, 3), value), value=value)
    ids = torch.tensor([[5, 1, 1], [0, 1, 1]])
    compare(model, eager, ids)
    assert len(model.report().exports) <= 5


def from_the_module(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return hidden.tanh() if (ids > model.limit).any() else hidden


def from_activations(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return hidden.tanh() if (hidden.sum() + ids.sum()) > 0 else hidden


def by_chance(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return hidden.tanh() if (torch.rand(ids.shape) * ids).sum() > 1.0 else hidden


@pytest.mark.parametrize("body", [from_the_module, from_activations])
def test_other_questions_are_left_to_pytorch(body: Callable[..., torch.Tensor]) -> None:
    with pytest.warns(UserWarning, match="runs in PyTorch"):
        model, eager = pair(body)
        for value in (0, 1, 5, 0):
            compare(model, eager, torch.full((2, 3), value), body=body)
    assert model.report().fallback == "whole"


def test_a_question_with_random_numbers_is_left_to_pytorch() -> None:
    model, eager = pair(by_chance)
    ids, x = torch.ones(2, 3, dtype=torch.long), torch.randn(2, 3, 4)
    with pytest.warns(UserWarning, match="runs in PyTorch"):
        for seed in range(6):
            results = []
            for module in (model, eager):
                torch.manual_seed(seed)
                results.append(module(x, ids))
            assert torch.equal(*results)


def test_autocast_does_not_change_an_answer() -> None:
    def close(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores = ids.float() @ ids.float().T  # in bfloat16 under autocast: 257 * 257 is not exact there
        return hidden.tanh() if (scores[0, 0] == 66049).item() else hidden

    model, eager = pair(close)
    ids = torch.tensor([[257], [1]])
    x = torch.randn(2, 1, 4)
    with pytest.warns(UserWarning, match="runs in PyTorch"), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x, ids), eager(x, ids))
    torch.testing.assert_close(model(x, ids), eager(x, ids))


def test_many_answers_end_in_pytorch() -> None:
    def bits(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        for bit in range(4):
            if (ids[0, 0] >> bit) & 1 == 1:
                hidden = hidden * (bit + 2)
        return hidden

    model, eager = pair(bits)
    with pytest.warns(UserWarning, match="branches on the values of its inputs"):
        for value in [*range(12), 3, 1, 11]:
            compare(model, eager, torch.full((2, 3), value), value=value)
    assert len(model.report().exports) == 8


def test_a_number_that_the_trace_knows_leaves_nothing_behind() -> None:
    def chunked(model: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        count = torch.div(torch.tensor(ids.shape[1]), 2, rounding_mode="trunc").item()
        return hidden[:, :count].tanh() if (ids > 0).any().item() else hidden

    model, eager = pair(chunked, fallback="error")
    for batch in (3, 5):
        compare(model, eager, torch.randint(1, 9, (batch, 4)))
    assert not model.report().aten_nodes

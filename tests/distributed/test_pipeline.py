"""Pipelines train as one process does; the order of a rank's work; what cannot be cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ortmodule.distributed.pipeline import Action, Pipeline, bubble, order_of
from ortmodule.errors import InvalidArgumentError
from tests.distributed.parallel import distances
from tests.distributed.pipelines import FOUR, TWO, Case, all_on_rank, one_process
from tests.distributed.spawn import of_cases, on_ranks

ON_TWO = {
    "1f1b in PyTorch": Case(TWO, steps=3, engine="eager"),
    "interleaved": Case(FOUR, steps=3),
}
ON_FOUR = {
    "four stages": Case(FOUR, pipe=4, steps=3),
    "1f1b x zero 3": Case(TWO, data=2, stage=3, steps=3),
    "interleaved x zero 1": Case(FOUR, data=2, stage=1, steps=3),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return of_cases(tmp_path_factory, "pipelines", all_on_rank, {2: ON_TWO, 4: ON_FOUR})


@pytest.mark.parametrize("name", [*ON_TWO, *ON_FOUR])
def test_training_is_that_of_one_process(found: dict[str, Any], name: str) -> None:
    case = {**ON_TWO, **ON_FOUR}[name]
    by_loss, by_parameter = distances(found[name][0], one_process(case))
    assert by_loss <= 1e-6
    assert by_parameter <= 1e-6
    assert all(one["losses"] == found[name][0]["losses"] for one in found[name])


def test_a_pipeline_says_what_lies_where(found: dict[str, Any]) -> None:
    text = found["interleaved"][0]["text"]
    assert "stage 2 on rank 0: from 3" in text
    assert "ranks wait for 11% of a step" in text


@pytest.mark.parametrize(
    ("ranks", "micro", "chunks"), [(1, 3, 1), (2, 4, 1), (4, 2, 1), (4, 9, 1), (2, 4, 2), (4, 8, 3)]
)
def test_every_order_can_be_run_and_holds_few_activations(ranks: int, micro: int, chunks: int) -> None:
    orders = [order_of(rank, ranks, micro, chunks) for rank in range(ranks)]
    stages = ranks * chunks
    for rank, order in enumerate(orders):
        assert len(set(order)) == len(order) == 2 * micro * chunks
        held = most = 0
        for action in order:
            held += 1 if action.forward else -1
            most = max(most, held)
        assert most <= (ranks - rank if chunks == 1 else 2 * (ranks - rank) + (chunks - 1) * ranks)
    done: set[tuple[bool, int, int]] = set()
    at = [0] * ranks
    while any(at[rank] < len(orders[rank]) for rank in range(ranks)):
        moved = False
        for rank in range(ranks):
            while at[rank] < len(orders[rank]):
                action = orders[rank][at[rank]]
                stage = action.chunk * ranks + rank
                if action.forward:
                    ready = stage == 0 or (True, stage - 1, action.micro) in done
                else:
                    last = stage == stages - 1
                    ready = (True, stage, action.micro) in done
                    ready = ready and (last or (False, stage + 1, action.micro) in done)
                if not ready:
                    break
                done.add((action.forward, stage, action.micro))
                at[rank] += 1
                moved = True
        assert moved, "ranks wait for one another"


def test_the_order_of_one_forward_and_one_backward() -> None:
    text = ["".join(f"{'F' if a.forward else 'B'}{a.micro}" for a in order_of(rank, 2, 3)) for rank in range(2)]
    assert text == ["F0F1B0F2B1B2", "F0B0F1B1F2B2"]
    assert order_of(0, 2, 2, 2)[2] == Action(True, 1, 0)
    assert bubble(4, 8) == pytest.approx(3 / 11)
    assert bubble(4, 8, 2) == pytest.approx(1.5 / 9.5)


def refused(rank: int) -> list[str]:
    del rank
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    attempts: list[tuple[nn.Module, tuple[str, ...], int]] = [
        (nn.Linear(2, 2), ("1",), 2), (layers, ("7",), 2), (layers, ("2", "1", "3"), 2), (layers, ("1", "2"), 2),
        (layers, ("1", "2", "3"), 3), (tied, ("1",), 2),
    ]  # fmt: skip
    out = []
    for model, cuts, micro in attempts:
        try:
            Pipeline(model, cuts, nn.functional.mse_loss, micro)  # type: ignore[arg-type]
            out.append("nothing")
        except InvalidArgumentError as error:
            out.append(str(error))
    pipeline = Pipeline(layers, ("2",), nn.functional.mse_loss, 2)
    try:
        pipeline.step(torch.zeros(3, 2), torch.zeros(3, 2))
    except InvalidArgumentError as error:
        out.append(str(error))
    return out


def test_what_cannot_be_cut_is_said_on_every_rank() -> None:
    words = [
        "cut from an nn.Sequential, got Linear", "no stage can begin with '7'", "not in the order",
        "3 stages cannot lie",
        "3 micro-batches are no multiple of 2", "a parameter of an earlier stage, too: give example=",
        "3 rows cannot be divided",
    ]  # fmt: skip
    for texts in on_ranks(2, refused):
        assert len(texts) == len(words)
        for text, word in zip(texts, words, strict=True):
            assert word in text


def predicted(rank: int) -> bool:
    """Whether results of an nn.Sequential in four stages are, on the last one's rank alone, those of one process."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    x = torch.randn(6, 4)
    expected = model(x).detach()
    found = Pipeline(model, ("1", "2", "3"), nn.functional.mse_loss, 2).predict(x)
    return found is None if rank == 0 else found is not None and torch.allclose(torch.cat(found), expected, rtol=1e-5)


def test_predictions_lie_on_the_last_rank() -> None:
    assert on_ranks(2, predicted) == [True, True]

"""Stages that are cut from a model's graph train as one process does; where graphs are cut, and what is refused."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ortmodule import Options
from ortmodule.distributed.pipeline import Pipeline
from ortmodule.distributed.pipeline.cut import cut_places
from ortmodule.errors import InvalidArgumentError, ORTModuleError
from tests.distributed.cut_models import Case, all_on_rank, batch_of, distances, gpt2
from tests.distributed.spawn import of_cases, of_checks, on_ranks, once

ON_TWO = {
    "T5, interleaved": Case("t5", 4),
    "BERT, cut at a module": Case("bert", ("bert.encoder.layer.2",)),
}
ON_FOUR = {
    "GPT-2, four stages": Case("gpt2", 4, pipe=4),
    "GPT-2 x zero 3": Case("gpt2", 2, data=2, zero=3),
    "tensor x pipeline": Case("divided", 2, tensor=2),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return of_cases(tmp_path_factory, "cut-pipelines", all_on_rank, {2: ON_TWO, 4: ON_FOUR})


@pytest.mark.parametrize("name", [*ON_TWO, *ON_FOUR])
def test_training_is_that_of_one_process(found: dict[str, Any], name: str) -> None:
    by_loss, by_parameter = distances(found[name][0], {**ON_TWO, **ON_FOUR}[name])
    assert by_loss <= 1e-6
    assert by_parameter <= 1e-6
    assert all(one["losses"] == found[name][0]["losses"] for one in found[name])


def test_a_pipeline_says_where_it_is_cut(found: dict[str, Any]) -> None:
    text = found["GPT-2, four stages"][0]["text"]
    assert "stage 2 on rank 2: from transformer.h.2.ln_1/" in text
    assert "transformer.wte.weight on ranks 0, 3, its gradients summed over them" in text
    assert "from bert.encoder.layer.2." in found["BERT, cut at a module"][0]["text"]
    whole = sum(p.numel() for p in gpt2().parameters())
    assert found["GPT-2, four stages"][0]["held"] < 0.35 * whole


# -- where it is cut ---------------------------------------------------------------------------------------------------


def layers(count: int, wide: int = 4) -> tuple[list[float], list[int]]:
    """Work and crossing bytes of layers of four nodes, within which `wide` times as much crosses as between them."""
    works, crossing = [], []
    for _ in range(count):
        works += [1.0, 4.0, 4.0, 1.0]
        crossing += [100, 100 * wide, 100 * wide, 100 * wide]
    return works, [0, *crossing[1:], 0]


@pytest.mark.parametrize(("count", "stages"), [(4, 2), (8, 4), (9, 4), (96, 16)])
def test_cuts_lie_between_layers_and_stages_are_alike(count: int, stages: int) -> None:
    works, crossing = layers(count)
    cuts = cut_places(works, crossing, stages)
    assert cuts is not None and len(cuts) == stages - 1
    assert all(crossing[cut] == 100 for cut in cuts)
    parts = [sum(works[a:b]) for a, b in itertools.pairwise([0, *cuts, len(works)])]
    assert max(parts) <= 10.0 * -(-count // stages)


def test_a_layer_is_cut_open_where_there_are_too_few() -> None:
    cuts = cut_places(*layers(1), 4)
    assert cuts == [1, 2, 3]
    assert cut_places([1.0, 1.0], [0, 8, 0], 3) is None


def test_a_stage_reads_what_it_has() -> None:
    works, crossing = layers(2)
    allowed = [[i < 6 for i in range(8)], [i >= 3 for i in range(8)]]
    assert cut_places(works, crossing, 2, allowed) == [4]
    assert cut_places(works, crossing, 2, [[i < 3 for i in range(8)], [i >= 3 for i in range(8)]]) == [3]
    assert cut_places(works, crossing, 2, [[i < 3 for i in range(8)], [i >= 5 for i in range(8)]]) is None


# -- what is refused, on every rank ------------------------------------------------------------------------------------


class Picks(nn.Module):
    """Hands on as many rows as its data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.second(h[h[:, 0] > 0]).square().mean()


class Norms(nn.Module):
    """Batch norm and dropout, and a result of which a function makes the loss."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(dropout)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.second(self.drop(self.norm(self.first(x)).relu())), x.shape[0]


class Labelled(nn.Module):
    """Small enough to be cut behind its layers, where least is handed on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.second(self.first(x).relu())
        return {"y": y} if labels is None else {"loss": nn.functional.mse_loss(y, labels), "y": y}


def squares(result: tuple[torch.Tensor, int], wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(result[0], wanted)


def said(function: Any, kind: type[Exception] = ORTModuleError) -> str:
    with pytest.raises(kind) as error:
        function()
    return str(error.value)


def check_what_cannot_be_cut(rank: int) -> None:
    del rank
    given, x = batch_of("gpt2", 0, 0, 4), torch.randn(4, 8)

    def make(model: nn.Module, cuts: Any = None, loss: Any = None, micro: int = 2, example: Any = given) -> Any:
        return said(lambda: Pipeline(model, cuts, loss, micro, example=example), InvalidArgumentError)

    assert "no stage can begin with 'h.1', which is no module: did you mean transformer.h.1" in make(gpt2(2), ["h.1"])
    assert "the cuts are not in the order of the forward" in make(
        gpt2(2), ["lm_head", "transformer.wte", "transformer.h.1"]
    )
    assert "40 stages need as many layers with weights" in make(gpt2(2), 40)
    assert "3 stages cannot lie on 2 ranks" in make(gpt2(2), 3)
    assert "inputs of 4 rows cannot be divided into 3 micro-batches" in make(gpt2(2), 2, micro=3)
    assert "has no loss" in make(Norms(), example=x)
    assert "has a size that depends on data: cut elsewhere" in make(Picks(), ["second"], example=x)


def check_a_batch_that_does_not_fit_loses_nothing(rank: int) -> None:
    del rank
    pipeline = Pipeline(Norms(), 2, squares, 2, example=torch.randn(8, 8))
    x, y = torch.randn(8, 8), torch.randn(8, 4)
    first = pipeline.evaluate(x, y)
    assert "inputs of 3 rows cannot be divided" in said(lambda: pipeline.step(x[:3], y[:3]))
    assert "targets have 4 rows in one tensor and 8 in another" in said(lambda: pipeline.step(x, y[:4]))
    assert torch.isfinite(first)
    pipeline.step(x, y)


def check_a_rank_that_fails_is_told_to_the_others(rank: int) -> None:
    pipeline = Pipeline(Norms(), 2, squares, 2, example=torch.randn(8, 8))
    x, y = torch.randn(8, 8), torch.randn(8, 4)
    pipeline.step(x, y)
    begun = time.monotonic()
    wrong = y[:, :3] if rank == dist.get_world_size() - 1 else y
    text = said(lambda: pipeline.step(x, wrong), Exception)
    assert "must match" in text and time.monotonic() - begun < 5.0
    assert "an earlier step of this pipeline failed" in said(lambda: pipeline.step(x, y))


def check_batch_norm_and_other_modes_and_sizes(rank: int) -> None:
    torch.manual_seed(0)
    alone = Norms()
    pipeline = Pipeline(alone, 2, squares, 4, example=torch.randn(16, 8), options=Options(fallback="error"))
    torch.manual_seed(0)
    alone = Norms()
    for step, rows in enumerate((16, 16, 8, 24)):
        x, y = torch.randn(rows, 8), torch.randn(rows, 4)
        alone.zero_grad()
        expected = sum(squares(alone(a), b) for a, b in zip(x.chunk(4), y.chunk(4), strict=True)) / 4
        expected.backward()
        pipeline.model.zero_grad()
        torch.testing.assert_close(pipeline.step(x, y), expected.detach(), rtol=1e-5, atol=0.0, msg=f"step {step}")
        own = dict(pipeline.model.named_parameters())
        assert own
        for name, p in own.items():
            torch.testing.assert_close(p.grad, alone.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
    pipeline.eval()
    alone.eval()
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    torch.testing.assert_close(pipeline.evaluate(x, y), squares(alone(x), y).detach(), rtol=1e-5, atol=1e-6)
    for name, value in pipeline.model.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-5, atol=1e-6)
    assert not any(p.grad is None for p in pipeline.model.parameters())
    del rank


def check_a_transformer_at_other_sizes_and_in_eval(rank: int) -> None:
    alone, given = gpt2(2), batch_of("gpt2", 0, 0, 8)
    pipeline = Pipeline(gpt2(2), 2, None, 4, example=given, options=Options(fallback="error"))

    def expected(given: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = [{name: value.chunk(4)[i] for name, value in given.items()} for i in range(4)]
        return torch.stack([alone(**part).loss for part in parts]).mean()

    for step, (rows, length) in enumerate([(8, 16), (12, 9)]):
        given = {name: value[:, :length].contiguous() for name, value in batch_of("gpt2", step, rank, rows).items()}
        given = {name: _of_first(value) for name, value in given.items()}
        alone.zero_grad()
        loss = expected(given)
        loss.backward()
        pipeline.model.zero_grad()
        torch.testing.assert_close(pipeline.step(given), loss.detach(), rtol=1e-6, atol=0.0)
        for name, p in pipeline.model.named_parameters():
            torch.testing.assert_close(p.grad, alone.get_parameter(name).grad, rtol=1e-4, atol=1e-6)
    pipeline.eval()
    alone.eval()
    torch.testing.assert_close(pipeline.evaluate(given), expected(given).detach(), rtol=1e-6, atol=0.0)


def check_predictions_are_those_of_one_process(rank: int) -> None:
    alone, given = gpt2(2), batch_of("gpt2", 0, 0, 8)
    pipeline = Pipeline(gpt2(2), 2, None, 4, example=given, options=Options(fallback="error"))
    pipeline.step(given)
    unlabelled = {name: value for name, value in given.items() if name != "labels"}
    for model, batch in (((alone, pipeline), given), ((alone.eval(), pipeline.eval()), unlabelled)):
        found = model[1].predict(batch)
        assert (found is None) == (rank != 1)
        for i, result in enumerate(found or []):
            expected = alone(**{name: value.chunk(4)[i] for name, value in batch.items()})
            assert type(result) is type(expected)
            torch.testing.assert_close(result.logits, expected.logits, rtol=1e-5, atol=1e-6)
            assert not result.logits.requires_grad
        assert found is None or len(found) == 4
    torch.testing.assert_close(pipeline.step(given), alone(**given).loss.detach(), rtol=1e-5, atol=0.0)
    pipeline = Pipeline(Norms(), 2, squares, 2, example=torch.randn(8, 8)).eval()
    x = torch.ones(8, 8)
    found = pipeline.predict(x)
    assert rank == 0 or [(y.shape, count) for y, count in found or []] == [((4, 4), 4)] * 2
    assert "inputs of 3 rows cannot be divided" in said(lambda: pipeline.predict(x[:3]))
    # Nothing but the loss lies behind the last layer: the last stage has that, too, for calls without labels.
    labelled = Labelled()
    expected = labelled(x)["y"].detach()
    found = Pipeline(labelled, 2, None, 2, example=(x, x[:, :4])).predict(x)
    assert (found is None) == (rank == 0)
    if found is not None:
        torch.testing.assert_close(torch.cat([result["y"] for result in found]), expected, rtol=1e-5, atol=1e-6)


def _of_first(value: torch.Tensor) -> torch.Tensor:
    """The first rank's, on all."""
    dist.broadcast(value, 0)
    return value


def check_ranks_with_other_batches(rank: int) -> None:
    pipeline = Pipeline(Norms(), 2, squares, 2, example=torch.randn(8, 8), agree_seconds=1.0)
    rows = 8 if rank == 0 else 12
    text = said(lambda: pipeline.step(torch.randn(rows, 8), torch.randn(rows, 4)))
    assert "did not come to 'the cut of a graph' within 1 s" in text
    pipeline = Pipeline(Norms(), 2, squares, 2, example=torch.randn(8, 8))
    rows = 3 if rank == 0 else 8
    assert "inputs of 3 rows cannot be divided" in said(
        lambda: pipeline.step(torch.randn(rows, 8), torch.randn(rows, 4))
    )


def check_dropout_draws_from_each_ranks_generator(rank: int) -> None:
    pipeline = Pipeline(Norms(0.5), 2, squares, 2, example=torch.randn(8, 8))
    x, y = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(8, 4)
    losses = []
    for seed in (rank, rank, rank + 7):
        torch.manual_seed(seed)
        losses.append(pipeline.step(x, y).item())
    assert losses[0] == losses[1] != losses[2]


def check_the_whole_model_is_no_more(rank: int) -> None:
    model = Norms()
    pipeline = Pipeline(model, 2, squares, 2, example=torch.randn(8, 8))
    assert "cut into stages" in said(model.state_dict)
    freed = [p for p in model.parameters() if not p.untyped_storage().nbytes()]
    assert len(freed) + len(list(pipeline.model.parameters())) == len(list(model.parameters()))
    assert "was called with what its graph was not cut for" in said(
        lambda: pipeline.stages[0](torch.ones(1)), Exception
    )
    del rank


CHECKS = [
    check_what_cannot_be_cut,
    check_a_batch_that_does_not_fit_loses_nothing,
    check_a_rank_that_fails_is_told_to_the_others,
    check_batch_norm_and_other_modes_and_sizes,
    check_a_transformer_at_other_sizes_and_in_eval,
    check_predictions_are_those_of_one_process,
    check_ranks_with_other_batches,
    check_dropout_draws_from_each_ranks_generator,
    check_the_whole_model_is_no_more,
]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return once(tmp_path_factory, "cut-checks", lambda: on_ranks(2, of_checks, CHECKS))


@pytest.mark.parametrize("i", range(len(CHECKS)), ids=[check.__name__[6:] for check in CHECKS])
def test_on_ranks(checked: list[list[str]], i: int) -> None:
    assert [one[i] for one in checked] == ["", ""]

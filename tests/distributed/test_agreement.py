"""Ranks that disagree or are missing: one clear error on every rank, soon."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.distributed import DistributedError, ZeroPolicy, gathered, zero
from ortmodule.errors import ORTModuleError
from tests.distributed.models import GPT, batch
from tests.distributed.spawn import on_ranks, once

POLICY = ZeroPolicy(bucket_bytes=1 << 14, agree_seconds=2.0, hang_seconds=2.0)


def model_of(rank: int, case: str) -> nn.Module:
    torch.manual_seed(0)
    if case == "order" and rank == 1:
        return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    if case == "shape" and rank == 1:
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    if case == "shape":
        return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    out = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    return out.double() if case == "dtype" and rank == 1 else out


# What differs on rank 1, and what the error says on every rank.
DISAGREEMENTS = {
    "order": "rank 1 has '0.weight torch.float32 [4]' where rank 0 has '0.weight torch.float32 [4, 4]'",
    "shape": "rank 1 has '2.weight torch.float32 [3, 4]' where rank 0 has '2.weight torch.float32 [2, 4]'",
    "dtype": "rank 1 has '0.weight torch.float64 [4, 4]' where rank 0 has '0.weight torch.float32 [4, 4]'",
    "frozen": "rank 1 has '0.weight torch.float32 [4, 4] frozen' where rank 0 has '0.weight torch.float32 [4, 4]'",
    "optimizer": "rank 1 has 'stage 2 of Sequential with SGD' where rank 0 has 'stage 2 of Sequential with AdamW'",
    "options": "rank 1 has 'group 0: lr=0.02' where rank 0 has 'group 0: lr=0.01'",
    "policy": "rank 1 has 'bucket_bytes=8192' where rank 0 has 'bucket_bytes=16384'",
    "missing": "rank 1 did not come to 'the set-up of zero()' within 2 s",
}


def set_up(rank: int, case: str) -> None:
    model = model_of(rank, case)
    if rank == 1 and case == "frozen":
        model[0].weight.requires_grad_(False)  # type: ignore[index]
    kind = torch.optim.SGD if rank == 1 and case == "optimizer" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.02 if rank == 1 and case == "options" else 0.01)
    policy = POLICY
    if rank == 1 and case == "policy":
        policy = ZeroPolicy(bucket_bytes=1 << 13, agree_seconds=2.0, hang_seconds=2.0)
    if rank == 1 and case == "missing":
        time.sleep(3)
    zero(model, optimizer, stage=2, policy=policy)


def graphs(rank: int, case: str) -> None:
    """At stage 3 rank 1 captures a graph that gathers other parameters."""
    del case

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.b(self.a(x)) if both else self.a(x)

    model = ORTModule(Branches())
    policy = ZeroPolicy(bucket_bytes=64, agree_seconds=2.0, hang_seconds=2.0)
    model, _ = zero(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, policy=policy)
    model(torch.ones(2, 4), rank == 0)


def eager_call(rank: int, case: str) -> None:
    """At stage 3 a call cannot run in PyTorch."""
    del rank, case

    class Printing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) * len(str(x.sum().item()))

    model = ORTModule(Printing())
    model, _ = zero(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, policy=POLICY)
    model(torch.ones(2, 4))


def hangs(rank: int, case: str) -> None:
    """Rank 1 stops in the middle of training."""
    del case
    model: nn.Module = GPT(1)
    model, optimizer = zero(model, torch.optim.AdamW(model.parameters()), stage=2, policy=POLICY)
    for step in range(3):
        if rank == 1 and step == 2:
            time.sleep(6)
            raise DistributedError("this rank slept")
        optimizer.zero_grad()
        model(batch(step, 0, rank)).backward()
        optimizer.step()


def said_by(rank: int, cases: list[tuple[Callable[[int, str], None], str]]) -> list[tuple[str, float]]:
    """The error of each case on this rank, and after how many seconds it came."""
    out = []
    for function, case in cases:
        dist.barrier()
        start = time.monotonic()
        try:
            function(rank, case)
            out.append(("nothing", time.monotonic() - start))
        except ORTModuleError as error:
            out.append((str(error), time.monotonic() - start))
    return out


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    cases: list[Any] = [(set_up, case) for case in DISAGREEMENTS] + [(graphs, "graphs"), (eager_call, "eager")]
    cases.append((hangs, "hangs"))  # the last one: its group is of no use afterwards
    by_rank = once(tmp_path_factory, "agreement", lambda: on_ranks(2, said_by, cases, end=False))
    return {name: [one[i] for one in by_rank] for i, (_, name) in enumerate(cases)}


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_what_differs_is_said_alike_on_every_rank(found: dict[str, list[Any]], case: str) -> None:
    for text, seconds in found[case]:
        assert DISAGREEMENTS[case] in text
        assert seconds < 10


def test_graphs_with_other_collectives_are_told_apart(found: dict[str, list[Any]]) -> None:
    texts = {text for text, _ in found["graphs"]}
    assert len(texts) == 1
    assert "ranks disagree on the collectives of a graph" in texts.pop()


def test_a_call_that_would_run_in_pytorch_is_an_error_at_stage_3(found: dict[str, list[Any]]) -> None:
    for text, _ in found["eager"]:
        assert text != "nothing"


def late_in_a_graph(rank: int) -> list[str]:
    """Rank 1 comes late to a forward, and to a backward, of stage 3; what the log says here."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("ortmodule").addHandler(Keep())
    policy = ZeroPolicy(bucket_bytes=1 << 14, hang_seconds=0.5)
    model: nn.Module = ORTModule(GPT(1))
    model, optimizer = zero(model, torch.optim.AdamW(model.parameters()), stage=3, policy=policy)
    for step in range(3):
        optimizer.zero_grad()
        if rank == 1 and step == 1:
            time.sleep(2.5)
        loss = model(batch(step, 0, rank))
        if rank == 1 and step == 2:
            time.sleep(2.5)
        loss.backward()
        optimizer.step()
    return said


def test_a_rank_that_is_late_to_a_graph_is_named_in_the_log() -> None:
    said = [text for text in on_ranks(2, late_in_a_graph)[0] if "rank 1" in text]
    assert len(said) == 2
    assert "the graph of forward 2 takes more than 0.5 s: rank 1 was last seen at 'backward 1'" in said[0]
    assert (
        "the graph of the backward of forward 3 takes more than 0.5 s: rank 1 was last seen at 'forward 3'" in said[1]
    )


def test_a_rank_that_hangs_is_named(found: dict[str, list[Any]]) -> None:
    text, seconds = found["hangs"][0]
    assert "rank 1 was last seen at 'backward 2'" in text
    assert seconds < 5, "before it is gone"


def refused(rank: int) -> list[str]:
    del rank
    out = []

    class Summing(torch.optim.Optimizer):
        """Divides by a norm over the whole tensor."""

        def __init__(self, params: Any, lr: float = 0.1) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad / p.grad.norm())

    def attempt(function: Callable[[], Any]) -> None:
        try:
            function()
            out.append("nothing")
        except ORTModuleError as error:
            out.append(str(error))

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    attempt(lambda: zero(model, torch.optim.SGD(other.parameters()), stage=1))
    attempt(lambda: zero(model, torch.optim.SGD(model.parameters()), stage=4))
    attempt(lambda: zero(model, Summing(model.parameters()), stage=2))
    attempt(lambda: zero(model, torch.optim.LBFGS(model.parameters()), stage=1))
    attempt(lambda: zero(nn.Linear(2, 2, device="meta"), torch.optim.SGD(model.parameters()), stage=1))
    _, optimizer = zero(model, torch.optim.SGD(model.parameters()), stage=1)
    attempt(lambda: zero(model, optimizer, stage=1))
    with optimizer.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    attempt(optimizer.step)
    sharded = ORTModule(nn.Linear(4, 4), options=Options())
    sharded, third = zero(sharded, torch.optim.SGD(sharded.parameters()), stage=3)
    attempt(sharded.state_dict)
    with gathered(third):
        attempt(lambda: sharded(torch.ones(1, 4)))
        assert sharded.state_dict()["weight"].abs().sum() > 0
    return out


def test_what_does_not_fit_is_said() -> None:
    (texts,) = on_ranks(1, refused)
    words = [
        "2 parameters that are not the model's", "stage is 1, 2 or 3, got 4", "Summing does not update each element",
        "LBFGS does not update each element", "not the model's", "sharded already", "within no_sync()",
        "within gathered(optimizer)", "leave it first",
    ]  # fmt: skip
    assert len(texts) == len(words)
    for text, word in zip(texts, words, strict=True):
        assert word in text

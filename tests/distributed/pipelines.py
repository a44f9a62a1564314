"""A small GPT-2 as a sequence of layers, and its training as a pipeline on ranks, against one process.

Not here: what is asserted (test_pipeline.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import ZeroPolicy, gathered, zero
from ortmodule.distributed.parallel import clip_grad_norm_
from ortmodule.distributed.pipeline import Pipeline
from tests.distributed.models import CONTEXT, VOCABULARY, batch
from tests.distributed.parallel import WIDTH, Block, optimizer_of, trained_alone


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))


def build() -> nn.Sequential:
    """words, 0, 1, 2, 3 (blocks), norm, head."""
    torch.manual_seed(0)
    out = nn.Sequential()
    out.add_module("words", Words())
    for i in range(4):
        out.add_module(str(i), Block(experts=False))
    out.add_module("norm", nn.LayerNorm(WIDTH))
    out.add_module("head", nn.Linear(WIDTH, VOCABULARY))
    return out


def loss_of(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def pair(step: int, rank: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is given, and what is wanted, of a step on a data rank."""
    ids = batch(step, 0, rank, rows)
    return ids[:, :-1], ids[:, 1:]


@dataclasses.dataclass(frozen=True)
class Case:
    """`data` x `pipe` ranks; `stage` of zero, 0: without."""

    cuts: tuple[str, ...]
    data: int = 1
    pipe: int = 2
    micro_batches: int = 4
    stage: int = 0
    steps: int = 5
    engine: str = "ortmodule"
    clip: float = 0.5

    @property
    def world(self) -> int:
        return self.data * self.pipe


def wrapped(module: nn.Module) -> nn.Module:
    return ORTModule(module, options=Options(fallback="error"))


def one_process(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build()
    run = wrapped(model) if case.engine == "ortmodule" else model
    count = case.data * case.micro_batches

    def parts(step: int) -> Iterator[torch.Tensor]:
        for rank in range(case.data):
            given, wanted = pair(step, rank, case.micro_batches)
            for x, y in zip(given.chunk(case.micro_batches), wanted.chunk(case.micro_batches), strict=True):
                yield loss_of(run(x), y) / count

    return trained_alone(model, parts, case.steps, case.clip)


def on_rank(rank: int, case: Case) -> dict[str, Any]:
    del rank
    mesh = init_device_mesh("cpu", (case.data, case.pipe), mesh_dim_names=("data", "pipe"))
    wrap = wrapped if case.engine == "ortmodule" else None
    pipeline = Pipeline(build(), case.cuts, loss_of, case.micro_batches, mesh["pipe"], wrap=wrap)
    model, optimizer = pipeline.model, optimizer_of(pipeline.model)
    sharded: Any = None
    if case.stage:
        policy = ZeroPolicy(bucket_bytes=8 << 10, mesh=mesh["data"])
        model, sharded = zero(model, optimizer, stage=case.stage, policy=policy)
    losses = []
    for step in range(case.steps):
        (sharded or optimizer).zero_grad()
        loss = pipeline.step(*pair(step, mesh.get_local_rank("data"), case.micro_batches), optimizer=sharded)
        if case.clip:
            sharded.clip_grad_norm_(case.clip) if sharded else clip_grad_norm_(model, case.clip)
        (sharded or optimizer).step()
        mean = loss.double()
        dist.all_reduce(mean, group=mesh.get_group("data"))
        losses.append(mean.item() / case.data)
    if sharded:
        with gathered(sharded):
            state = {name: value.clone() for name, value in model.state_dict().items()}
    else:
        state = model.state_dict()
    everyone: list[Any] = [None] * case.world
    dist.all_gather_object(everyone, state)
    return {
        "losses": losses,
        "state": {name: value for one in everyone for name, value in one.items()},
        "held": sum(p.numel() for p in pipeline.model.parameters()),
        "text": str(pipeline),
    }


def all_on_rank(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [on_rank(rank, case) for case in cases]


TWO, FOUR = ("2",), ("1", "3", "head")


def matrix(steps: int) -> dict[str, Case]:
    """Cases of the full matrix, by name."""
    return {
        "pipeline": Case(TWO, steps=steps),
        "pipeline, four": Case(FOUR, pipe=4, steps=steps),
        "pipeline, in PyTorch": Case(TWO, steps=steps, engine="eager"),
        "interleaved": Case(FOUR, pipe=2, steps=steps),
        **{f"pipeline x zero {s}": Case(TWO, data=2, stage=s, steps=steps) for s in (1, 2, 3)},
        **{f"interleaved x zero {s}": Case(FOUR, data=2, stage=s, steps=steps) for s in (1, 2)},
    }

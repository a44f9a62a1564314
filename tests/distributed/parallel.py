"""A small GPT-2 whose code does not ask how many heads or words a rank has, its plans, and its training on ranks.

One process trains the same model on the mean over the data ranks' batches. Not here: what is asserted
(test_parallel.py), and longer runs (`python -m tests.distributed parallel`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ortmodule import Options, ORTModule
from ortmodule.distributed import ZeroPolicy, gathered, zero
from ortmodule.distributed.parallel import (
    Column,
    Experts,
    FeedForwardExperts,
    MixtureOfExperts,
    Row,
    Sequence,
    SplitOutput,
    Style,
    Vocabulary,
    VocabularyLoss,
    clip_grad_norm_,
    parallelize,
    whole_state_dict,
)
from tests.distributed.models import CONTEXT, VOCABULARY, batch
from tests.distributed.training import EPSILON, distance

WIDTH, HEADS, EXPERTS = 32, 4, 4


class Block(nn.Module):
    def __init__(self, experts: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if experts:
            router = nn.Linear(WIDTH, EXPERTS, bias=False)
            self.moe = MixtureOfExperts(router, FeedForwardExperts(EXPERTS, WIDTH, 2 * WIDTH), top_k=2)
        else:
            self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.ln_1(x))
        q, k, v = qkv.view(*qkv.shape[:2], 3, -1, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        h = self.ln_2(x)
        return x + (self.moe(h) if self.experts else self.out(F.gelu(self.fc(h), approximate="tanh")))


class GPT(nn.Module):
    """Returns the loss of predicting each next token; the last one predicts nothing."""

    def __init__(self, layers: int = 2, experts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(experts) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        self.loss = nn.CrossEntropyLoss()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.ln_f(x))
        wanted = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
        return self.loss(scores.view(-1, scores.shape[-1]), wanted.flatten())


TENSOR: dict[str, Style] = {
    "wte": Vocabulary(),
    "head": Vocabulary(),
    "loss": VocabularyLoss(),
    "blocks.*.qkv": Column(parts=3),
    "blocks.*.fc": Column(),
    "blocks.*.proj": Row(),
    "blocks.*.out": Row(),
}
SEQUENCE: dict[str, Style] = {
    "wte": Vocabulary(sequence=1),
    "wpe": SplitOutput(dim=0),
    "head": Vocabulary(sequence=1),
    "loss": VocabularyLoss(),
    "blocks.*.qkv": Column(parts=3, sequence=1),
    "blocks.*.fc": Column(sequence=1),
    "blocks.*.proj": Row(sequence=1),
    "blocks.*.out": Row(sequence=1),
    "blocks.*.ln_1": Sequence(),
    "blocks.*.ln_2": Sequence(),
    "ln_f": Sequence(),
}
WHOLE: dict[str, Style] = {
    "head": Vocabulary(gather=True),
    "wte": Vocabulary(),
    "blocks.*.qkv": Column(parts=3, gather=True),
    "blocks.*.proj": Row(split=True),
    "blocks.*.fc": Column(gather=True),
    "blocks.*.out": Row(split=True),
}
EXPERT: dict[str, Style] = {"blocks.*.moe": Experts()}
EXPERT_SEQUENCE: dict[str, Style] = {
    **{name: style for name, style in SEQUENCE.items() if not name.endswith((".fc", ".out"))},
    "blocks.*.moe": Experts(divided=True),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """How a run trains: `data` x `tensor` ranks; `stage` 0: without `zero`."""

    plan: dict[str, Style]
    data: int = 1
    tensor: int = 2
    stage: int = 0
    steps: int = 5
    engine: str = "ortmodule"
    experts: bool = False
    clip: float = 0.5

    @property
    def world(self) -> int:
        return self.data * self.tensor


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPSILON, weight_decay=0.1)


def trained_alone(
    model: nn.Module, parts: Callable[[int], Iterable[torch.Tensor]], steps: int, clip: float
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses by step and the state at the end, in one process; `parts(step)` are what the step's loss is the sum of."""
    optimizer, losses = optimizer_of(model), []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for loss in parts(step):
            loss.backward()
            total += loss.item()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(total)
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def one_process(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = GPT(experts=case.experts)
    run: nn.Module = ORTModule(model, options=Options(fallback="error")) if case.engine == "ortmodule" else model
    return trained_alone(
        model,
        lambda step: (run(batch(step, 0, rank)) / case.data for rank in range(case.data)),
        case.steps,
        case.clip,
    )


def on_rank(rank: int, case: Case) -> dict[str, Any]:
    """The same on this rank; "losses" are means over the data ranks."""
    del rank
    mesh = init_device_mesh("cpu", (case.data, case.tensor), mesh_dim_names=("data", "tensor"))
    model: nn.Module = GPT(experts=case.experts)
    if case.engine == "ortmodule":
        model = ORTModule(model, options=Options(fallback="error"))
    model = parallelize(model, case.plan, mesh["tensor"])
    optimizer: Any = optimizer_of(model)
    if case.stage:
        policy = ZeroPolicy(bucket_bytes=8 << 10, mesh=mesh["data"])
        model, optimizer = zero(model, optimizer, stage=case.stage, policy=policy)
    losses = []
    for step in range(case.steps):
        optimizer.zero_grad()
        loss = model(batch(step, 0, mesh.get_local_rank("data")))
        loss.backward()
        if case.clip:
            optimizer.clip_grad_norm_(case.clip) if case.stage else clip_grad_norm_(model, case.clip)
        optimizer.step()
        mean = loss.detach().double()
        dist.all_reduce(mean, group=mesh.get_group("data"))
        losses.append(mean.item() / case.data)
    if case.stage:
        with gathered(optimizer):
            state = whole_state_dict(model)
    else:
        state = whole_state_dict(model)
    return {"losses": losses, "state": state, "held": sum(p.numel() for p in model.parameters())}


def all_on_rank(rank: int, cases: list[Case]) -> list[dict[str, Any]]:
    return [on_rank(rank, case) for case in cases]


def distances(found: dict[str, Any], expected: tuple[list[float], dict[str, torch.Tensor]]) -> tuple[float, float]:
    """Of a run's losses, and of its parameters, from those of one process: the largest relative ones."""
    losses, state = expected
    by_loss = max(abs(a - b) / b for a, b in zip(found["losses"], losses, strict=True))
    assert found["state"].keys() == state.keys()
    return by_loss, distance(*(torch.cat([one[name].flatten() for name in state]) for one in (found["state"], state)))


def matrix(steps: int) -> dict[str, Case]:
    """Cases of the full matrix, by name."""
    return {
        "tensor": Case(TENSOR, tensor=2, steps=steps),
        "tensor, four": Case(TENSOR, tensor=4, steps=steps),
        "tensor, in PyTorch": Case(TENSOR, tensor=2, steps=steps, engine="eager"),
        "tensor, whole in between": Case(WHOLE, tensor=4, steps=steps),
        "tensor and sequence": Case(SEQUENCE, tensor=2, steps=steps),
        "tensor and sequence, four": Case(SEQUENCE, tensor=4, steps=steps),
        **{f"tensor x zero {s}": Case(TENSOR, data=2, tensor=2, stage=s, steps=steps) for s in (1, 2, 3)},
        **{f"sequence x zero {s}": Case(SEQUENCE, data=2, tensor=2, stage=s, steps=steps) for s in (1, 2, 3)},
        "experts": Case(EXPERT, tensor=2, steps=steps, experts=True),
        "experts, four": Case(EXPERT, tensor=4, steps=steps, experts=True),
        "experts and sequence": Case(EXPERT_SEQUENCE, tensor=2, steps=steps, experts=True),
        "experts x zero 2": Case(EXPERT, data=2, tensor=2, stage=2, steps=steps, experts=True),
        "experts x zero 3": Case(EXPERT, data=2, tensor=2, stage=3, steps=steps, experts=True),
    }

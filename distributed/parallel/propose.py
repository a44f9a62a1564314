"""`propose_plan`: among how many ranks a model should be divided, and how, from memory and bandwidth.

What can be divided is read from the model's dataflow (dataflow.py). Every way to lay tensor parallelism and `zero` over
the ranks is then priced by the bytes that a step moves; the cheapest one that fits is proposed, and all are printed.
Not here: a model of time for thousands of GPUs (benchmarks/scale_sim.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from ortmodule.distributed.memory import memory_estimate
from ortmodule.distributed.parallel.dataflow import Pair, pairs_of, works
from ortmodule.distributed.parallel.division import divisions_of
from ortmodule.distributed.parallel.plan import Plan, pattern_of
from ortmodule.distributed.parallel.styles import Column, Row, Style, Vocabulary
from ortmodule.distributed.policy import ZeroPolicy
from ortmodule.errors import InvalidArgumentError

__all__ = ["Choice", "Proposal", "propose_plan"]

# A table of words is worth dividing where it has this many times as many rows as columns.
_TALL = 4


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to lay a model over ranks.

    Attributes:
        tensor, data: among how many ranks modules are divided, and how many such groups have data of their own.
        stage: of `zero` over the latter; 0: there is one alone.
        memory: bytes on a rank, of parameters, masters, gradients, the optimizer's states and activations.
        seconds: what a rank's collectives of a step take, none of them hidden.
        fits: whether the memory is there.
    """

    tensor: int
    data: int
    stage: int
    memory: int
    seconds: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What `propose_plan` found; `plan` is for `choice.tensor` ranks, `others` are what it was compared with."""

    plan: Plan
    choice: Choice
    others: tuple[Choice, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = ["tensor  data  zero  memory (GiB)  communication (ms)"]
        for one in self.others:
            said = " <" if one == self.choice else "" if one.fits else " does not fit"
            lines.append(
                f"{one.tensor:>6}  {one.data:>4}  {one.stage or '-':>4}  {one.memory / 2**30:>12.2f}  "
                f"{1e3 * one.seconds:>18.2f}{said}"
            )
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, str(self.plan) if self.choice.tensor > 1 else "no module is divided"])


def propose_plan(
    model: nn.Module,
    example: tuple[Any, ...],
    *,
    ranks: int,
    memory: float,
    bandwidth: float,
    tokens: int,
    node: int | None = None,
    across: float | None = None,
    activations: float = 0.0,
    policy: ZeroPolicy | None = None,
    states: int = 2,
) -> Proposal:
    """Proposes a plan, and how the ranks are divided among tensor parallelism and `zero`.

    Args:
        model: on one process and with its values, with which it is tried out whether code between layers takes a part
            of the features.
        example: arguments of a call.
        ranks: how many there are.
        memory: bytes that a rank has.
        bandwidth: bytes a second that a rank sends within a node; between nodes `across` (None: as fast).
        tokens: rows of a step over all ranks (batch times sequence).
        node: how many ranks a node has, the most that modules are divided among; None: all.
        activations: bytes that a step on one rank holds of activations with all tokens there and nothing divided
            (`ORTModule.memory_report`); they are divided by tokens, and otherwise taken as whole.
        policy, states: as in `memory_estimate`.

    Raises:
        InvalidArgumentError: it fits in no way; the text has the table.

    A Row and a Column together move their result twice a step, 2 (t - 1) / t of it each time (the ring algorithm);
    `zero` moves 2 (3 at stage 3) times the bytes of a rank's parameters.
    """
    node = min(node or ranks, ranks)
    notes: list[str] = []
    sizes = [n for n in range(1, node + 1) if ranks % n == 0 and node % n == 0]
    plans = {1: (Plan({}), 0)} | {n: _plan(model, example, n, notes) for n in sizes if n > 1}
    choices = []
    for tensor, (plan, moved) in plans.items():
        if tensor > 1 and not plan.styles:
            continue
        held = _elements(model, plan, tensor)
        dtype = next((p.dtype for p in model.parameters() if p.requires_grad), torch.float32)
        data = ranks // tensor
        for stage in (1, 2, 3) if data > 1 else (0,):
            need = memory_estimate(held, stage=stage, world=data, policy=policy, states=states, dtype=dtype).total
            need += round(activations / data)
            seconds = 4 * (tensor - 1) / tensor * moved * tokens / data * dtype.itemsize / bandwidth
            speed = bandwidth if ranks <= node else across or bandwidth
            seconds += (3 if stage == 3 else 2) * (data - 1) / data * held * dtype.itemsize / speed
            choices.append(Choice(tensor, data, stage, need, seconds, need <= memory))
    order = sorted(choices, key=lambda c: (not c.fits, c.seconds if c.fits else c.memory, c.tensor, c.stage))
    best = order[0]
    proposal = Proposal(plans[best.tensor][0], best, tuple(choices), tuple(dict.fromkeys(notes)))
    if not best.fits:
        raise InvalidArgumentError(
            f"the model fits on {ranks} ranks of {memory / 2**30:.2f} GiB in no way:\n{proposal}"
        )
    return proposal


def _elements(model: nn.Module, plan: Plan, world: int) -> int:
    """How many trained elements a rank holds."""
    held: dict[nn.Parameter, int] = {p: p.numel() for p in model.parameters() if p.requires_grad}
    for name, styles in plan.match(model).items():
        module = model.get_submodule(name)
        for style in styles:
            for own, division in divisions_of(module, style).items():
                p = module.get_parameter(own)
                if p in held:
                    held[p] = division.elements(p.shape, world)
    return sum(held.values())


def _plan(model: nn.Module, example: tuple[Any, ...], world: int, notes: list[str]) -> tuple[Plan, int]:
    """A plan for so many ranks, and how many elements a row the results are that its pairs add up."""
    by_pattern: dict[tuple[tuple[str, ...], str], list[Pair]] = {}
    for pair in pairs_of(model, example):
        key = (tuple(map(pattern_of, pair.columns)), pattern_of(pair.row))
        by_pattern.setdefault(key, []).append(pair)
    styles: dict[str, Style | tuple[Style, ...]] = {}
    moved = 0
    for (columns, row), pairs in by_pattern.items():
        if not works(model, pairs[0], example, world):
            notes.append(
                f"{', '.join(columns)} and {row} are not divided among {world}: sizes do not allow it, or the code "
                "between them asks for all heads"
            )
            continue
        styles.update({name: Column(parts=pairs[0].parts) for name in columns})
        styles[row] = Row()
        moved += sum(model.get_submodule(pair.row).out_features for pair in pairs)  # type: ignore[misc]
    for name, module in _tables(model).items():
        styles[name] = Vocabulary(gather=isinstance(module, nn.Linear))
        moved += module.weight.shape[1] if isinstance(module, nn.Embedding) else module.weight.shape[0] // 4
    return Plan(styles), moved


def _tables(model: nn.Module) -> dict[str, Any]:
    """Embeddings of many words, and the Linears that give their scores, by name."""
    words: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Embedding
        and module.num_embeddings >= _TALL * module.embedding_dim
        and not module.max_norm
    }
    tied = {module.weight for module in words.values()}
    counts = {module.num_embeddings for module in words.values()}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and (module.weight in tied or module.out_features in counts):
            words[name] = module
    return words

"""A model that is cut into stages which lie on different ranks, and trains micro-batch after micro-batch.

The model is an nn.Sequential: what is cut is the list of its children, at the names that are given; a stage is given
what the one before returns, one tensor, and is an ORTModule of its own where that is asked for.
Not here: the order of a rank's work (schedule.py), messages (messages.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.collectives import ModelParts, Ranks
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.distributed.pipeline.messages import Border
from ortmodule.distributed.pipeline.schedule import Action, bubble, order_of
from ortmodule.errors import InvalidArgumentError

__all__ = ["Pipeline"]


class Pipeline:
    """To be made on all ranks of the job, also where several groups have a pipeline each.

    Args:
        model: an nn.Sequential, the same on all ranks; of its children those of this rank's stages are kept.
        cuts: names of the children with which the second stage and each further one begin, in order. There are as many
            stages as ranks, or a multiple of that: stage s lies on rank s modulo their number (interleaved).
        loss: of the last stage's result and a target, the mean over the rows of a micro-batch.
        micro_batches: into how many parts a batch is divided; with several stages a rank a multiple of the ranks.
        group: a mesh of one dimension, or a process group; None: all ranks.
        wrap: what a stage is wrapped in, `ORTModule` for one; None: nothing.
        broadcast: parameters and buffers become those of the group's first rank before the model is cut.

    Attributes:
        model: what this rank trains, with the names of the whole model; `zero` and optimizers take it.
        stages: its stages, in their order.

    Raises:
        InvalidArgumentError: the model cannot be cut so.
        RankDisagreementError: ranks have different models or cuts.
    """

    def __init__(
        self,
        model: nn.Sequential,
        cuts: Sequence[str],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        micro_batches: int,
        group: DeviceMesh | dist.ProcessGroup | None = None,
        *,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
        broadcast: bool = True,
        agree_seconds: float = 10.0,
        hang_seconds: float = 60.0,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise DistributedError("no process group: call torch.distributed.init_process_group")
        if isinstance(group, DeviceMesh):
            group = group.get_group()
        group = dist.group.WORLD if group is None else group
        assert group is not None
        self._group, self._loss, self.micro_batches = group, loss, micro_batches
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        agreement = Agreement(dist.get_process_group_ranks(group), agree_seconds, hang_seconds)
        problem = _problem(model, cuts, micro_batches, self.world)
        agreement.compare("the set-up of a pipeline", problem or _facts(model, cuts, micro_batches))
        if problem is not None:
            raise InvalidArgumentError(problem)
        if broadcast:
            collectives.broadcast_all([*model.parameters(), *model.buffers()], Ranks(group))
        self.cuts, self.chunks = list(cuts), (len(cuts) + 1) // self.world
        self._count = len(cuts) + 1
        self.stages, self.model = self._own(_pieces(model, cuts), wrap)
        collectives.set_model_parts(self.model, ModelParts((group,)))
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._borders = self._make_borders(device)

    def _own(
        self, pieces: list[list[tuple[str, nn.Module]]], wrap: Callable[[nn.Module], nn.Module] | None
    ) -> tuple[list[nn.Module], nn.Module]:
        """This rank's stages, and one module of all of them."""
        mine = pieces[self.rank :: self.world]
        modules = [_sequence(children) for children in mine]
        stages = [module if wrap is None else wrap(module) for module in modules]
        return stages, stages[0] if len(stages) == 1 else _sequence([child for piece in mine for child in piece])

    def _make_borders(self, device: torch.device) -> dict[int, Border]:
        """Those of this rank's stages, by the stage that comes before."""
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, dist.get_process_group_ranks(self._group))
        own = everyone[dist.get_rank()]
        out = {}
        for ranks in sorted(map(list, set(map(tuple, everyone)))):
            for stage in range(self._count - 1):
                before, after = ranks[stage % len(ranks)], ranks[(stage + 1) % len(ranks)]
                if before != after:
                    border = Border(before, after, device)
                    if ranks == own and dist.get_rank() in (before, after):
                        out[stage] = border
        return out

    def __str__(self) -> str:
        """A line a stage, with its rank and children, and how long ranks wait."""
        starts = ["the first child", *self.cuts]
        lines = [f"stage {i} on rank {i % self.world}: from {name}" for i, name in enumerate(starts)]
        idle = bubble(self.world, self.micro_batches, self.chunks)
        return "\n".join([*lines, f"{self.micro_batches} micro-batches: ranks wait for {idle:.0%} of a step"])

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, optimizer: Any = None) -> torch.Tensor:
        """Forward and backward of a batch, on all ranks; gradients are added to those there are.

        Args:
            inputs: [batch, ..], what the first stage is given; read on its rank alone, as `targets` on the last one's.
            targets: [batch, ..].
            optimizer: what `zero` returned, if it was called: gradients are summed over its ranks at the end.

        Returns:
            The mean loss over the batch, a 0-d tensor without history, on all ranks.

        Raises:
            InvalidArgumentError: the batch cannot be divided into the micro-batches.
        """
        micro = self.micro_batches
        for name, given in (("inputs", inputs), ("targets", targets)):
            if given.shape[0] % micro:
                raise InvalidArgumentError(
                    f"{name} of {given.shape[0]} rows cannot be divided into {micro} micro-batches"
                )
        sharded = isinstance(optimizer, ZeroOptimizer)
        run = _Step(self, inputs.chunk(micro), targets.chunk(micro))
        with optimizer.no_sync() if sharded else contextlib.nullcontext():
            for action in order_of(self.rank, self.world, micro, self.chunks):
                (run.forward if action.forward else run.backward)(action)
        for border in self._borders.values():
            border.finish()
        if sharded:
            optimizer.sync()
        total = run.total
        dist.all_reduce(total, group=self._group)
        return total


class _Step:
    """One step of a rank."""

    def __init__(self, pipeline: Pipeline, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        self._p, self._inputs, self._targets = pipeline, inputs, targets
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # a stage's input and its result
        self._here: dict[tuple[int, int], torch.Tensor] = {}  # messages within the rank, where there is one alone
        self.total = torch.zeros((), device=inputs[0].device)

    def _stage(self, action: Action) -> int:
        return action.chunk * self._p.world + self._p.rank

    def forward(self, action: Action) -> None:
        stage, micro = self._stage(action), action.micro
        if stage == 0:
            given = self._inputs[micro]
        else:
            border = self._p._borders.get(stage - 1)
            given = border.receive_activation() if border else self._here.pop((stage, micro))
            if given.is_floating_point():
                given.requires_grad_()
        made = self._p.stages[action.chunk](given)
        if stage == self._p._count - 1:
            made = self._p._loss(made, self._targets[micro]) / self._p.micro_batches
            self.total = self.total + made.detach()
        elif not isinstance(made, torch.Tensor):
            raise TypeError(f"stage {stage} returns {type(made).__name__}: the next one is handed one tensor")
        elif border := self._p._borders.get(stage):
            border.send_activation(made)
        else:
            self._here[stage + 1, micro] = made.detach()
        self._kept[stage, micro] = given, made

    def backward(self, action: Action) -> None:
        stage, micro = self._stage(action), action.micro
        given, made = self._kept.pop((stage, micro))
        if stage == self._p._count - 1:
            gradient = None
        else:
            border = self._p._borders.get(stage)
            gradient = border.receive_gradient(made) if border else self._here.pop((stage, ~micro))
        if made.requires_grad:
            torch.autograd.backward([made], [gradient])
        if stage > 0:
            back = given.grad if given.grad is not None else torch.zeros_like(given)
            if border := self._p._borders.get(stage - 1):
                border.send_gradient(back)
            else:
                self._here[stage - 1, ~micro] = back


def _sequence(children: Sequence[tuple[str, nn.Module]]) -> nn.Sequential:
    out = nn.Sequential()
    for name, child in children:
        out.add_module(name, child)
    return out


def _pieces(model: nn.Sequential, cuts: Sequence[str]) -> list[list[tuple[str, nn.Module]]]:
    """The model's children by stage."""
    out: list[list[tuple[str, nn.Module]]] = [[]]
    for name, child in model.named_children():
        if name in cuts:
            out.append([])
        out[-1].append((name, child))
    return out


def _problem(model: Any, cuts: Sequence[str], micro_batches: int, world: int) -> str | None:
    """Why a model cannot be cut so."""
    if type(model).forward is not nn.Sequential.forward:
        return f"a pipeline is cut from an nn.Sequential, got {type(model).__name__}"
    names = [name for name, _ in model.named_children()]
    unknown = [name for name in cuts if name not in names[1:]]
    if unknown:
        return f"no stage can begin with '{unknown[0]}': the children after the first are {', '.join(names[1:])}"
    if sorted(cuts, key=names.index) != list(cuts) or len(set(cuts)) < len(cuts):
        return f"the cuts are not in the order of the model's children: {', '.join(cuts)}"
    stages = len(cuts) + 1
    if stages % world:
        return f"{stages} stages cannot lie on {world} ranks: give a multiple of {world}, less one, of cuts"
    if micro_batches < 1 or (stages > world and micro_batches % world):
        return f"{micro_batches} micro-batches are no multiple of {world} ranks, which several stages a rank need"
    stage_of: dict[torch.Tensor, int] = {}
    for i, children in enumerate(_pieces(model, cuts)):
        for name, child in children:
            for own, p in child.named_parameters():
                if stage_of.setdefault(p, i) != i:
                    return (
                        f"{name}.{own} is a parameter of an earlier stage, too: tied parameters must lie in one stage"
                    )
    return None


def _facts(model: nn.Module, cuts: Sequence[str], micro_batches: int) -> str:
    lines = [f"{micro_batches} micro-batches, cut at {', '.join(cuts)}"]
    return "\n".join(lines + [f"{name} {p.dtype} {[*p.shape]}" for name, p in model.named_parameters()])

"""A model that is cut into stages which lie on different ranks, and trains micro-batch after micro-batch.

Not here: what is cut (graph_stages.py; sequential.py for the children of an nn.Sequential), the order of a rank's work
(schedule.py), a step (step.py), messages (messages.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ortmodule import Options
from ortmodule.distributed import collectives
from ortmodule.distributed.agreement import Agreement
from ortmodule.distributed.collectives import ModelParts, Ranks
from ortmodule.distributed.errors import DistributedError
from ortmodule.distributed.optimizer import ZeroOptimizer
from ortmodule.distributed.pipeline import sequential
from ortmodule.distributed.pipeline.graph_stages import GraphStages
from ortmodule.distributed.pipeline.messages import Border
from ortmodule.distributed.pipeline.micro_batches import MicroBatches
from ortmodule.distributed.pipeline.schedule import bubble, order_of
from ortmodule.distributed.pipeline.sequential import SequentialStages
from ortmodule.distributed.pipeline.shared import SharedParameters
from ortmodule.distributed.pipeline.step import Step
from ortmodule.errors import InvalidArgumentError, ORTModuleError

__all__ = ["Pipeline"]

Batch = torch.Tensor | tuple[Any, ...] | Mapping[str, Any]


class Pipeline:
    """To be made on all ranks of the job, also where several groups have a pipeline each.

    Args:
        model: any module, the same on all ranks and whole (of a parallelized one each rank's part); this rank's
            parameters of it are kept. It may be an ORTModule, for its options.
        cuts: names of the modules with which the second stage and each further one begin, in the forward's order; or
            how many stages there are, which are cut where little crosses and each has about the same work; None: as
            many as ranks. There are as many stages as ranks, or a multiple of that: stage s lies on rank s modulo their
            number (interleaved).
        loss: of the model's result and a micro-batch's targets, the mean over its rows, computed on the last stage's
            rank; None: the result has it, as that of transformers' models with labels.
        micro_batches: into how many parts a batch is divided; with several stages a rank a multiple of the ranks.
        group: a mesh of one dimension, or a process group; None: all ranks.
        example: a batch as `step` is given it; the graph of a micro-batch of it is cut. None: the model is an
            nn.Sequential, and its list of children is cut, each stage returning one tensor.
        wrap: without `example`: what a stage is wrapped in, `ORTModule` for one; None: nothing.
        options: with `example`: of the stages' ORTModules; None: the model's, if it is one.
        broadcast: parameters and buffers become those of the group's first rank before the model is cut.

    Attributes:
        model: what this rank trains, with the names of the whole model; `zero` and optimizers take it.

    Raises:
        InvalidArgumentError: the model cannot be cut so; on all ranks.
        RankDisagreementError: ranks have different models or cuts.
    """

    def __init__(
        self,
        model: nn.Module,
        cuts: Sequence[str] | int | None,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        micro_batches: int,
        group: DeviceMesh | dist.ProcessGroup | None = None,
        *,
        example: Batch | None = None,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
        options: Options | None = None,
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
        self._agreement = Agreement(dist.get_process_group_ranks(group), agree_seconds, hang_seconds)
        self._steps, self._broken = 0, ""
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        inner = getattr(model, "module", model)
        self._compare_tensors(inner)
        if broadcast:
            collectives.broadcast_all([*inner.parameters(), *inner.buffers()], Ranks(group))
        self.cuts: list[str] = [] if cuts is None or isinstance(cuts, int) else list(cuts)
        self._count = cuts if isinstance(cuts, int) else self.world if cuts is None else len(self.cuts) + 1
        self.chunks = self._count // self.world
        own = range(self.rank, self._count, self.world)
        self._stages = self._make_stages(model, cuts, own, example, wrap, options)
        self.model = self._stages.model
        collectives.set_model_parts(getattr(self.model, "module", self.model), self._parts(inner))
        self._borders, groups = self._make_groups()
        self._shared = SharedParameters(groups)
        self._prepare_graphs(inner)
        self._agreed = {id(getattr(self._stages, "first", None))}

    # -- making the stages ------------------------------------------------------------------------------------------

    def _compare_tensors(self, model: nn.Module) -> None:
        """They must be the same ones on all ranks."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        facts = "\n".join(f"{name} {t.dtype} {[*t.shape]}" for name, t in tensors)
        self._agreement.compare("the model of a pipeline", facts)

    def _make_stages(
        self, model: nn.Module, cuts: Any, own: Sequence[int], example: Batch | None, wrap: Any, options: Any
    ) -> SequentialStages | GraphStages:
        problem, text, stages = self._problem(), "", None
        if problem is None and example is None:
            problem = sequential.problem(model, cuts)
        elif problem is None:
            try:
                given = MicroBatches(example, None, self.micro_batches)
                stages = GraphStages(model, self.cuts or self._count, self._loss is not None, options)
                text = stages.prepare(*given.calls[0])
            except ORTModuleError as error:
                problem = str(error)
        facts = f"{self._count} stages, {self.micro_batches} micro-batches, cut at {cuts}"
        self._agreement.compare("the set-up of a pipeline", problem or f"{facts}\n{text}")
        if problem is not None:
            raise InvalidArgumentError(problem)
        if stages is None:
            return SequentialStages(model, self.cuts, own, wrap)
        stages.place(own)
        return stages

    def _problem(self) -> str | None:
        stages, micro, world = self._count, self.micro_batches, self.world
        if stages < 1 or stages % world:
            return f"{stages} stages cannot lie on {world} ranks: give a multiple of {world} stages, or one cut less"
        if micro < 1 or (stages > world and micro % world):
            return f"{micro} micro-batches are no multiple of {world} ranks, which several stages a rank need"
        return None

    def _shared_on(self) -> dict[str, list[int]]:
        """Of the trained parameters that stages on several ranks read, which ranks of the group."""
        stages = self._stages
        if not isinstance(stages, GraphStages):
            return {}
        found = {}
        for name, p in stages.whole.named_parameters():
            ranks = sorted({s % self.world for s in stages.stages_of[name]})
            if len(ranks) > 1 and p.requires_grad:
                found[name] = ranks
        return found

    def _parts(self, model: nn.Module) -> ModelParts:
        """Which part of the model this rank has: of its stages, and of a parallelized one's what it had before."""
        before = collectives.model_parts(model) or ModelParts(())
        shared = {name: ranks[0] == self.rank for name, ranks in self._shared_on().items() if self.rank in ranks}
        own = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        divided = {name: how for name, how in before.divided.items() if name in own}
        return ModelParts((*before.groups, self._group), divided, before.label, before.counts_whole, shared)

    def _make_groups(self) -> tuple[dict[int, Border], dict[str, tuple[nn.Parameter, dist.ProcessGroup]]]:
        """This rank's borders, by the stage that comes before; and the shared parameters with their groups."""
        everyone: list[Any] = [None] * dist.get_world_size()
        shared = self._shared_on()
        dist.all_gather_object(everyone, (dist.get_process_group_ranks(self._group), list(map(tuple, shared.values()))))
        own, me = everyone[dist.get_rank()][0], dist.get_rank()
        borders, groups = {}, {}
        for ranks, sets in sorted({(tuple(r), tuple(dict.fromkeys(s))) for r, s in everyone}):
            for stage in range(self._count - 1):
                before, after = ranks[stage % len(ranks)], ranks[(stage + 1) % len(ranks)]
                if before != after:
                    border = Border(before, after, self._device, self._wait)
                    if list(ranks) == own and me in (before, after):
                        borders[stage] = border
            for some in sets:
                group = dist.new_group([ranks[r] for r in some])
                if list(ranks) == own and self.rank in some:
                    groups[some] = group
        named = dict(getattr(self.model, "module", self.model).named_parameters(remove_duplicate=False))
        return borders, {
            name: (named[name], groups[tuple(ranks)]) for name, ranks in shared.items() if self.rank in ranks
        }

    def _prepare_graphs(self, model: nn.Module) -> None:
        if not isinstance(self._stages, GraphStages):
            return
        from ortmodule.distributed.parallel.parallelize import compare_graphs, layout_of, set_layout  # many do without

        layout = layout_of(model)
        if layout is not None:
            set_layout(self.model, layout)
        for module in self._stages.modules.values():
            module._engine_call.manager.process_graphs(self._shared.in_graph, in_engine=True)
            if layout is not None:
                ranks = dist.get_process_group_ranks(layout.group)
                compare_graphs(module, Agreement(ranks, self._agreement.seconds, self._agreement.hang_seconds))

    @property
    def stages(self) -> list[nn.Module]:
        """This rank's stages, in their order."""
        return list(self._stages.modules.values())

    def __str__(self) -> str:
        """A line a stage, with its rank and where it begins, and how long ranks wait."""
        first = self._stages.first if isinstance(self._stages, GraphStages) else None
        starts = ["the first child", *self.cuts] if first is None else ["the first operator", *first.starts]
        lines = [f"stage {i} on rank {i % self.world}: from {name}" for i, name in enumerate(starts)]
        if first is not None:
            works, handed = first.works(), [0, *first.handed_bytes()]
            for i, line in enumerate(lines):
                share = works[i] / max(sum(works), 1.0)
                lines[i] = f"{line}, {share:.0%} of the work" + (f", is handed {handed[i]:,} bytes" if i else "")
            for name, ranks in self._shared_on().items():
                lines.append(f"{name} on ranks {', '.join(map(str, ranks))}, its gradients summed over them")
        idle = bubble(self.world, self.micro_batches, self.chunks)
        return "\n".join([*lines, f"{self.micro_batches} micro-batches: ranks wait for {idle:.0%} of a step"])

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, inputs: Batch, targets: Any = None, optimizer: Any = None) -> torch.Tensor:
        """Forward and backward of a batch, on all ranks; gradients are added to those there are.

        Args:
            inputs: of the model: one tensor, a tuple of arguments or a mapping of named ones. Tensors [batch, ..] are
                divided along their first axis, 0-d ones and what is no tensor goes to all micro-batches. The same on
                all ranks: each takes of it what its stages read. (Of an nn.Sequential the first stage's rank alone.)
            targets: of the loss: a tensor [batch, ..], or several in a tuple, list or dict; read on the last rank.
            optimizer: what `zero` returned, if it was called: gradients are summed over its ranks at the end.

        Returns:
            The mean loss over the micro-batches, a 0-d tensor without history, on all ranks.

        Raises:
            InvalidArgumentError: the batch cannot be divided into the micro-batches.
            LostRankError: another rank has failed in this step, with its reason.
        """
        sharded = isinstance(optimizer, ZeroOptimizer)
        with self._together(), optimizer.no_sync() if sharded else contextlib.nullcontext():
            run = self._begin(inputs, targets)
            self._shared.begin()
            for action in order_of(self.rank, self.world, self.micro_batches, self.chunks):
                (run.forward if action.forward else run.backward)(action)
            self._end()
            for work, what in self._shared.start():
                self._wait(work, what)
            self._shared.finish()
            total = self._mean(run.total)
        if sharded:
            optimizer.sync()
        return total

    @torch.no_grad()
    def evaluate(self, inputs: Batch, targets: Any = None) -> torch.Tensor:
        """The mean loss of a batch, as `step` gives it, in the present mode and without gradients; on all ranks."""
        with self._together():
            run = self._begin(inputs, targets)
            self._forward(run)
            return self._mean(run.total)

    @torch.no_grad()
    def predict(self, inputs: Batch) -> list[Any] | None:
        """What the model returns for a batch, in the present mode and without gradients; to be called on all ranks.

        Args:
            inputs: as of `step`, labels being left out or not, as the model has it.

        Returns:
            On the last stage's rank the results of the micro-batches, in their order; None on the others.

        Raises:
            InvalidArgumentError: the batch cannot be divided into the micro-batches.
            LostRankError: another rank has failed in it, with its reason.
        """
        with self._together():
            run = self._begin(inputs, None, predicts=True)
            self._forward(run)
            self._mean(run.total)  # no rank goes on where one has failed
        return [result for _, result in sorted(run.results.items())] or None

    def train(self, mode: bool = True) -> Pipeline:
        """Sets the mode of all stages, as nn.Module.train."""
        self._stages.train(mode)
        self.model.train(mode)
        return self

    def eval(self) -> Pipeline:
        return self.train(False)

    @contextlib.contextmanager
    def _together(self) -> Any:
        """One step, at which all ranks fail where one does."""
        self._steps += 1
        if self._broken:
            self._agreement.fail(self._topic, self._broken)
            raise DistributedError(self._broken)
        self._moving = False
        try:
            yield
        except Exception as error:
            said = f"rank {dist.get_rank()} failed in step {self._steps} of a pipeline: {error}"
            self._agreement.fail(self._topic, said)
            if self._moving:
                self._broken = f"an earlier step of this pipeline failed, make a new one: {error}"
                for border in self._borders.values():
                    border.forget()
            raise

    @property
    def _topic(self) -> str:
        return f"step {self._steps}"

    def _wait(self, work: Any, what: str) -> None:
        self._agreement.wait(work, what, self._topic)

    def _begin(self, inputs: Batch, targets: Any, predicts: bool = False) -> Step:
        batches = MicroBatches(inputs, targets, self.micro_batches)
        stages = self._stages.plan(*batches.calls[0], predicts)
        if not isinstance(stages, SequentialStages) and id(stages) not in self._agreed:
            self._agreement.compare("the cut of a graph", str(stages), f"in step {self._steps}")
            self._agreed.add(id(stages))

        def loss(result: Any, micro: int) -> torch.Tensor:
            return result if self._loss is None else self._loss(result, batches.targets(micro))

        self._moving = True
        leaves = [self._stages.leaves(*call) for call in batches.calls]
        return Step(stages, self.rank, self.world, self._borders, leaves, None if predicts else loss, self._device)

    def _forward(self, run: Step) -> None:
        for action in order_of(self.rank, self.world, self.micro_batches, self.chunks):
            if action.forward:
                run.forward(action)
        self._end()

    def _end(self) -> None:
        for border in self._borders.values():
            border.finish()

    def _mean(self, total: torch.Tensor) -> torch.Tensor:
        self._wait(dist.all_reduce(total, group=self._group, async_op=True), "the sum of the loss")
        return total

"""Stages that are cut from the graph of any model.

Every rank captures the whole model in its present mode with one micro-batch, cuts the graph where all others cut it,
and keeps its own stages' parameters. A stage is an ORTModule over these, which is given its part of the graph in place
of a capture. A graph of another mode or size is cut so that each stage reads what it has already.
Not here: the choice of places (cut.py), one stage's graph (stage_graph.py), messages and order (step.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ortmodule import Options, ORTModule
from ortmodule.capture import Captured, OutputRef, flatten_call
from ortmodule.distributed.pipeline.cut import cut_places
from ortmodule.distributed.pipeline.dataflow import Dataflow
from ortmodule.distributed.pipeline.messages import MOST_VALUES
from ortmodule.distributed.pipeline.part import part_of, release
from ortmodule.distributed.pipeline.stage_graph import StageGraph, flow_of, problem_of, single, stage_graphs
from ortmodule.errors import CaptureError, InvalidArgumentError
from ortmodule.graph_transition import FLOATING

__all__ = ["GraphStages"]

Cuts = Sequence[str] | int


class GraphStages:
    """Args:
    model: any module, or an ORTModule over one; its parameters are whole.
    cuts: names of the modules with which stages but the first begin, or how many stages there are.
    loss: whether a function makes the loss of the model's result; else the result has it.
    options: of the stages' ORTModules.

    `prepare` finds the stages, `place` keeps this rank's.

    Attributes:
        handed: what stages hand on, by name, in the first graph.
        stages_of: by parameter or buffer, by its first name, the stages that read it.
        model: what this rank trains.
    """

    def __init__(self, model: nn.Module, cuts: Cuts, loss: bool, options: Options | None) -> None:
        self._whole = model if isinstance(model, ORTModule) else ORTModule(model, options=options)
        self._options = options or self._whole._options
        self.whole = self._whole.module
        self._cuts, self._loss = cuts, loss
        self.count = cuts if isinstance(cuts, int) else len(cuts) + 1
        self._plans: dict[tuple[int, bool], GraphPlan] = {}
        self.stages_of: dict[str, set[int]] = {}
        self.modules: dict[int, ORTModule] = {}
        self.first: GraphPlan | None = None
        self.model: nn.Module = self.whole

    # -- finding the stages -----------------------------------------------------------------------------------------

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Cuts the graph of a micro-batch's call; what all ranks must have found alike, a line each.

        Raises:
            InvalidArgumentError: the model cannot be cut so.
        """
        if isinstance(self._cuts, list | tuple):
            modules = [name for name, _ in self.whole.named_modules() if name]
            for name in self._cuts:
                if name not in modules:
                    near = [m for m in modules if m.rpartition(".")[2] == name.rpartition(".")[2]][:3]
                    said = f": did you mean {', '.join(near)}" if near else ""
                    raise InvalidArgumentError(f"no stage can begin with '{name}', which is no module{said}")
        try:
            self.first = self._cut(args, kwargs, self._loss)
        except CaptureError as error:
            raise InvalidArgumentError(f"{type(self.whole).__name__} cannot be cut: {error}") from error
        return str(self.first)

    def _cut(self, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> GraphPlan:
        captured, leaves = self._whole._engine_call.graph_of(args, kwargs)
        number = len(self._plans)
        if (problem := problem_of(captured)) is not None:
            raise CaptureError(problem)
        results, spec = list(captured.outputs), captured.out_spec
        if not whole:
            results, spec = single(self._loss_of(captured))
        flow = flow_of(captured, results)
        sizes = _sizes(captured, leaves)
        cuts = self._places(flow, sizes)
        parts, handed = stage_graphs(dataclasses.replace(captured, out_spec=spec), flow, results, cuts, number)
        if any(len(names) > MOST_VALUES for names in handed):
            raise CaptureError(f"a stage would hand on {max(map(len, handed))} values, more than {MOST_VALUES}")
        starts = [flow.graph.node[flow.own[at]].name for at in cuts]
        plan = GraphPlan(self, number, captured, flow, parts, handed, starts, sizes)
        if not self.stages_of:
            self._note_readers(flow, cuts)
        self._plans[id(captured), whole] = plan
        return plan

    def _loss_of(self, captured: Captured) -> OutputRef:
        """The first floating scalar of the result."""
        types = {o.name: o.type.tensor_type for o in captured.model.graph.output}
        for ref in captured.outputs:
            found = types.get(ref.name or "")
            if ref.kind == "tensor" and found is not None and found.elem_type in FLOATING and not found.shape.dim:
                return ref
        raise CaptureError("its result has no loss, a floating tensor without axes: give loss=, or labels to the model")

    def _places(self, flow: Dataflow, sizes: Mapping[str, int]) -> list[int]:
        known = {name for name, stages in self.stages_of.items() if len(stages) < self.count}
        read = [[name for name in flow.reads[i] if name in known] for i in flow.own]
        allowed = None
        if self.first is not None:
            allowed = [[all(s in self.stages_of[n] for n in names) for names in read] for s in range(self.count)]
        elif isinstance(self._cuts, list | tuple):
            return self._named(flow)
        else:
            weights = flow.weights()
            if sum(weights) < self.count:
                raise CaptureError(
                    f"{self.count} stages need as many layers with weights, and its graph has {sum(weights)}"
                )
            allowed = _layers_at_both_ends(weights, self.count)
        works = [max(work, 1.0) for work in flow.works(sizes)]
        found = cut_places(works, flow.crossing_bytes(sizes), self.count, allowed)
        if found is None:
            raise CaptureError(f"its graph cannot be cut into {self.count} stages that read the parameters they have")
        return found

    def _named(self, flow: Dataflow) -> list[int]:
        assert not isinstance(self._cuts, int)
        out: list[int] = []
        for name in self._cuts:
            at = flow.starts(name)
            if at is None:
                raise CaptureError(f"no stage can begin with '{name}': its forward has no part in the graph")
            if at <= (out[-1] if out else 0):
                raise CaptureError(f"the cuts are not in the order of the forward: '{name}' begins no later stage")
            out.append(at)
        return out

    def _note_readers(self, flow: Dataflow, cuts: Sequence[int]) -> None:
        """Parameters and buffers by the stages that read them; what none reads is the first one's."""
        ends = [0, *cuts, len(flow.own)]
        tensors = [*self.whole.named_parameters(), *self.whole.named_buffers()]
        found: dict[str, set[int]] = {name: set() for name, _ in tensors}
        for s in range(self.count):
            for i in flow.own[ends[s] : ends[s + 1]]:
                for name in flow.reads[i]:
                    if name in found:
                        found[name].add(s)
        self.stages_of = {name: stages or {0} for name, stages in found.items()}

    # -- this rank's ------------------------------------------------------------------------------------------------

    def place(self, own: Sequence[int]) -> None:
        """Keeps what these stages read, and frees the rest of the parameters."""
        trees = {s: part_of(self.whole, self._names({s})) for s in own}
        self.modules = {s: ORTModule(tree, options=self._options) for s, tree in trees.items()}
        mine = self._names(own)
        self.model = self.modules[own[0]] if len(own) == 1 else part_of(self.whole, mine)
        release(p for name, p in self.whole.named_parameters() if name not in mine)
        self.whole.register_state_dict_pre_hook(_refuse_state_dict)
        for module in self.modules.values():
            module._engine_call.keep_in_engine("it is a stage of a pipeline")
            module._engine_call.manager.process_graphs(lambda info: info, in_engine=True)

    def _names(self, stages: Collection[int]) -> set[str]:
        return {name for name, read in self.stages_of.items() if read & set(stages)}

    @property
    def handed(self) -> list[list[str]]:
        assert self.first is not None
        return self.first.handed

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool) -> GraphPlan:
        """How a micro-batch's call is cut; `whole`: its whole result is wanted, and not the loss alone.

        Raises:
            CaptureError: it cannot be.
        """
        whole = whole or self._loss
        captured, _ = self._whole._engine_call.graph_of(args, kwargs)
        return self._plans.get((id(captured), whole)) or self._cut(args, kwargs, whole)

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return flatten_call(args, kwargs).leaves

    def train(self, mode: bool) -> None:
        self.whole.train(mode)
        for module in self.modules.values():
            module.train(mode)


@dataclasses.dataclass
class GraphPlan:
    """One graph of the model, cut.

    Attributes:
        number: of the graph among the model's.
        captured: the whole.
        parts: the stages.
        handed: what stages hand on, by name.
        starts: the nodes with which stages but the first begin.
        sizes: of the example, by symbol.
    """

    stages: GraphStages
    number: int
    captured: Captured
    flow: Dataflow
    parts: list[StageGraph]
    handed: list[list[str]]
    starts: list[str]
    sizes: dict[str, int]
    _given: set[tuple[int, bool]] = dataclasses.field(default_factory=set)

    def run(
        self, stage: int, leaves: Sequence[Any], handed: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """What a stage hands on of what it has made, by name; and the result of the last."""
        part, module = self.parts[stage], self.stages.modules[stage]
        tensors = [leaves[i] for i in part.arguments] + [handed[name] for name in part.handed_in]
        key = (stage, torch.is_grad_enabled())
        if key not in self._given:
            if (stage, not key[1]) not in self._given:
                module._engine_call.manager.give((self.number, *tensors), part.captured, part.dynamic)
            self._given.add(key)
        made = module(self.number, *tensors)
        return (dict(zip(part.made, made, strict=True)), None) if part.made else ({}, made)

    def works(self) -> list[float]:
        """What each stage costs, as an estimate in operations of one forward."""
        works, ends = self.flow.works(self.sizes), self.ends()
        return [sum(works[a:b]) for a, b in zip(ends, ends[1:], strict=False)]

    def ends(self) -> list[int]:
        names = [self.flow.graph.node[i].name for i in self.flow.own]
        return [0, *map(names.index, self.starts), len(names)]

    def handed_bytes(self) -> list[int]:
        return [sum(self.flow.bytes_of(name, self.sizes) for name in names) for names in self.handed]

    def __str__(self) -> str:
        """What ranks compare: operators, places and what is handed on."""
        operators = "\n".join(node.op_type for node in self.flow.graph.node)
        digest = hashlib.sha256(operators.encode()).hexdigest()[:16]
        lines = [f"a graph of {len(self.flow.graph.node)} operators with the hash {digest}"]
        for start, names in zip(self.starts, self.handed, strict=True):
            values = [f"{name} {self.flow.dims(name, self.sizes)}" for name in names]
            lines.append(f"a stage from {start}, which is handed {', '.join(values)}")
        return "\n".join(lines)


def _layers_at_both_ends(weights: Sequence[bool], count: int) -> list[list[bool]]:
    """By stage and node, whether it may run there: a stage leaves each later and each earlier one a layer with weights.
    So the last one has some, and does not end with the loss alone, which a call without labels has not.
    """
    spare, before = sum(weights) - count, 0
    ranges = []
    for is_layer in weights:
        ranges.append((before - spare, before) if is_layer else (0, count))
        before += is_layer
    return [[low <= stage <= high for low, high in ranges] for stage in range(count)]


def _sizes(captured: Captured, leaves: Sequence[Any]) -> dict[str, int]:
    """What symbols of the graph are in the example."""
    names = {name: leaf for leaf, name in captured.user_inputs}
    out: dict[str, int] = {}
    for value in captured.model.graph.input:
        if value.name in names:
            for axis, d in enumerate(value.type.tensor_type.shape.dim):
                if d.dim_param:
                    out[d.dim_param] = leaves[names[value.name]].shape[axis]
    return out


def _refuse_state_dict(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
    raise InvalidArgumentError(
        "state_dict() of a model that is cut into stages: this rank's part is pipeline.model's, and save_checkpoint "
        "writes all"
    )

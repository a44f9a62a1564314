"""The graphs of a pipeline's stages, made of a captured one.

A stage reads what the stage before hands on, arguments of the call, and its own parameters; it gives what later stages
read of what it makes, the last one the call's result. What a stage has been handed and a later one reads, too, goes on
without being in its graph. Not here: where the graph is cut (cut.py), who runs what (graph_stages.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import onnx
from torch.utils import _pytree as pytree

from ortmodule.capture import Captured, OutputRef
from ortmodule.capture.sizes import symbols_of_text
from ortmodule.distributed.pipeline.dataflow import ITEM_BYTES, Dataflow
from ortmodule.errors import CaptureError

__all__ = ["StageGraph", "flow_of", "problem_of", "stage_graphs"]


@dataclasses.dataclass
class StageGraph:
    """One stage.

    Attributes:
        captured: as if its module had been captured; called with the number of the whole graph, then `arguments`, then
            `handed_in`.
        arguments: which flat leaves of the whole call it reads.
        handed_in: names of the values that it reads of those that come from the stage before.
        made: names of its results, in order; none for the last stage, whose result is the call's.
        dynamic: (argument, axis) of the sizes that may vary.
    """

    captured: Captured
    arguments: list[int]
    handed_in: list[str]
    made: list[str]
    dynamic: frozenset[tuple[int, int]]


def problem_of(captured: Captured) -> str | None:
    """Why a captured graph is not one of a pipeline; None: it is."""
    if captured.branches or captured.flags:
        return "its forward branches on values, which are others in each micro-batch"
    for ref in captured.outputs:
        if ref.kind in ("object", "again") or (ref.kind == "input" and ref.name is not None):
            return "its result holds objects or parameters of the model, and not tensors that were computed alone"
    if any(kind == "input" for _, kind, _ in captured.mutations):
        return "its forward writes into its arguments"
    return None


def flow_of(captured: Captured, results: Sequence[OutputRef]) -> Dataflow:
    """The dataflow to these results, and to what is written into buffers."""
    wanted = [ref.name for ref in results if ref.kind in ("tensor", "size") and ref.name is not None]
    given = [*(name for _, name in captured.user_inputs), *captured.constants]
    return Dataflow(
        captured.model.graph, given, list(dict.fromkeys(wanted)), [name for name, _, _ in captured.mutations]
    )


def stage_graphs(
    captured: Captured, flow: Dataflow, results: Sequence[OutputRef], cuts: Sequence[int], number: int
) -> tuple[list[StageGraph], list[list[str]]]:
    """The stages, and for each but the last the names of what it hands on.

    Raises:
        CaptureError: the graph cannot be cut there.
    """
    ends = [0, *cuts, len(flow.own)]
    stage_of = {name: s for s in range(len(ends) - 1) for at in range(ends[s], ends[s + 1])
                for name in flow.graph.node[flow.own[at]].output if name}  # fmt: skip
    last_read = {name: stage_of_place(at, ends) for name, at in flow.last_reader().items()}
    order = sorted(last_read, key=lambda name: flow.made_at(name) or 0)
    handed = [[n for n in order if stage_of[n] <= s < last_read[n]] for s in range(len(ends) - 2)]
    _check_handed(captured, flow, handed)
    _check_written(captured, flow, ends)
    parts = [
        _Part(captured, flow, s, set(flow.own[ends[s] : ends[s + 1]]), handed[s - 1] if s else []).made(
            [n for n in handed[s] if stage_of[n] == s] if s < len(handed) else None, results, stage_of, number
        )
        for s in range(len(ends) - 1)
    ]
    return parts, handed


def stage_of_place(at: int, ends: Sequence[int]) -> int:
    """The stage of an own node; results of the call are read by the last one."""
    return min(next((s for s in range(len(ends) - 1) if at < ends[s + 1]), len(ends) - 2), len(ends) - 2)


def _check_handed(captured: Captured, flow: Dataflow, handed: Sequence[Sequence[str]]) -> None:
    told = {symbol for v in captured.model.graph.input for d in v.type.tensor_type.shape.dim
            for symbol in symbols_of_text(d.dim_param)}  # fmt: skip
    for s, names in enumerate(handed):
        for name in names:
            found = flow.types.get(name)
            if found is None or found.elem_type not in ITEM_BYTES:
                raise CaptureError(f"'{name}', which stage {s} would hand on, is no tensor of a known type")
            unknown = [d.dim_param for d in found.shape.dim if symbols_of_text(d.dim_param) - told]
            if unknown:
                node = flow.graph.node[flow.producer[name]].name
                raise CaptureError(
                    f"'{name}' of {node}, which stage {s} would hand on to stage {s + 1}, has a size that depends on "
                    "data: cut elsewhere"
                )


def _check_written(captured: Captured, flow: Dataflow, ends: Sequence[int]) -> None:
    """A buffer that is written lies where it is read."""
    readers: dict[str, set[int]] = {}
    for at, i in enumerate(flow.own):
        for name in flow.reads[i]:
            readers.setdefault(name, set()).add(stage_of_place(at, ends))
    for output, _, target in captured.mutations:
        made = flow.made_at(output)
        stages = readers.get(str(target), set()) | ({stage_of_place(made, ends)} if made is not None else set())
        if len(stages) > 1:
            raise CaptureError(f"{target} is written in the forward and read in stages {sorted(stages)}: cut elsewhere")


class _Part:
    """Makes the graph of one stage.

    Args:
        stage: its number.
        nodes: numbers of the own nodes in it.
        handed: names of what it is handed.
    """

    def __init__(
        self, captured: Captured, flow: Dataflow, stage: int, nodes: Collection[int], handed: Sequence[str]
    ) -> None:
        self._captured, self._flow, self._stage, self._handed = captured, flow, stage, handed
        self._nodes = set(nodes)
        self._read: set[str] = set()

    def made(
        self, hands_on: list[str] | None, results: Sequence[OutputRef], stage_of: dict[str, int], number: int
    ) -> StageGraph:
        captured, flow = self._captured, self._flow
        is_last = hands_on is None
        outputs = list(flow.wanted if hands_on is None else hands_on)
        refs = list(results) if is_last else [OutputRef("tensor", name) for name in outputs]
        mutations = [one for one in captured.mutations if stage_of.get(one[0], 0) == self._stage]
        self._close([*outputs, *(name for name, _, _ in mutations)])
        inner = {name for i in self._nodes for name in flow.graph.node[i].output}
        handed_in = [name for name in self._handed if name in self._read and name not in inner]
        leaf_of = {name: leaf for leaf, name in captured.user_inputs}
        kept_refs = {ref.flat_index for ref in refs if ref.kind == "input"}
        symbolic = {
            v.name for v in captured.model.graph.input if any(d.dim_param for d in v.type.tensor_type.shape.dim)
        }
        users = [n for n in leaf_of if n in self._read or leaf_of[n] in kept_refs or n in symbolic]
        wanted_inputs = [n for n in [*captured.parameters, *captured.buffers, *captured.constants] if n in self._read]
        wanted_inputs += [str(t) for _, _, t in mutations if t not in wanted_inputs]
        # What the last stage gives and was handed, or is given, passes through: a graph's result is what it makes.
        passed = {name: f"{name}.result" for name in outputs if name not in inner}
        model = self._model([*users, *handed_in, *wanted_inputs], [*outputs, *(m[0] for m in mutations)], passed)
        place = {leaf_of[name]: 1 + i for i, name in enumerate(users)}
        refs = [dataclasses.replace(r, flat_index=place[r.flat_index]) if r.flat_index in place else r for r in refs]
        refs = [dataclasses.replace(r, view=None, name=passed.get(r.name or "", r.name)) for r in refs]
        positions = [*users, *handed_in]
        types = {v.name: v.type.tensor_type for v in model.graph.input}
        dynamic = frozenset((1 + i, axis) for i, name in enumerate(positions)
                            for axis, d in enumerate(types[name].shape.dim) if d.dim_param)  # fmt: skip
        inputs = {v.name for v in model.graph.input}
        made = dataclasses.replace(
            captured, model=model, user_inputs=[(1 + i, name) for i, name in enumerate(positions)],
            parameters=[n for n in captured.parameters if n in inputs],
            buffers=[n for n in captured.buffers if n in inputs],
            constants={n: t for n, t in captured.constants.items() if n in inputs},
            outputs=refs, mutations=mutations, baked=[(0, number)], settings=[], guards=[], check=lambda tensors: None,
            out_spec=captured.out_spec if is_last else pytree.tree_structure(tuple(range(len(refs)))),
            specialized=[], messages=captured.messages if self._stage == 0 else [], repeats=(), trace=None,
            hook_order=[n for n in captured.hook_order if n in inputs], recorded=None,
            histories=[n for n in captured.histories if n in inputs],
            saved_writes=[n for n in captured.saved_writes if n in inputs],
            result_order=type(captured.result_order)(),
        )  # fmt: skip
        return StageGraph(made, [leaf_of[n] for n in users], handed_in, [] if is_last else outputs, dynamic)

    def _close(self, outputs: Sequence[str]) -> None:
        """Adds the nodes that each stage makes for itself, as far as this one reads them; fills in what it reads."""
        flow = self._flow
        todo = [name for i in self._nodes for name in flow.reads[i]] + list(outputs)
        while todo:
            name = todo.pop()
            if name in self._read:
                continue
            self._read.add(name)
            i = flow.producer.get(name)
            if i in flow.everywhere and i not in self._nodes:
                self._nodes.add(i)
                todo += flow.reads[i]

    def _model(self, inputs: Sequence[str], outputs: Sequence[str], passed: dict[str, str]) -> onnx.ModelProto:
        whole, flow = self._captured.model, self._flow
        model = onnx.ModelProto(ir_version=whole.ir_version, producer_name=whole.producer_name)
        model.opset_import.extend(whole.opset_import)
        model.functions.extend(whole.functions)
        graph = model.graph
        graph.name = f"{whole.graph.name}.stage{self._stage}"
        for name in inputs:
            graph.input.add(name=name).type.tensor_type.CopyFrom(flow.types[name])
        graph.initializer.extend(t for t in whole.graph.initializer if t.name in self._read)
        for i in sorted(self._nodes):
            graph.node.append(flow.graph.node[i])
            for name in flow.graph.node[i].output:
                if name in flow.types and name not in outputs:
                    graph.value_info.add(name=name).type.tensor_type.CopyFrom(flow.types[name])
        for name, result in passed.items():
            graph.node.add(op_type="Identity", input=[name], output=[result], name=f"stage{self._stage}/{result}")
        for name in outputs:
            graph.output.add(name=passed.get(name, name)).type.tensor_type.CopyFrom(flow.types[name])
        return model


def single(ref: OutputRef) -> tuple[list[OutputRef], Any]:
    """One result in the place of all, and its structure."""
    return [ref], pytree.tree_structure(0)

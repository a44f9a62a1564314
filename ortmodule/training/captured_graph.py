"""A captured module as a file has it: without what needs the module, with names that users know.

What exports of training graphs and of training artifacts share.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import torch
from torch import nn

from ..capture import Captured, leaf_names
from ..capture.containers.nodes import leaves_of, paths_of, unflatten
from ..capture.convert.onnx_graph import tensor_proto
from ..errors import InvalidArgumentError

__all__ = [
    "call_of",
    "dynamic_dims",
    "embed_constants",
    "name_outputs",
    "rename",
    "unique",
    "ways_of",
    "without_left",
]


def without_left(captured: Captured) -> onnx.ModelProto:
    """A copy of the graph without what needs the module: outputs for what its forward sets on it, checks that raise."""
    proto = copy.deepcopy(captured.model)
    nodes = [node for node in proto.graph.node if node.op_type != "Expect"]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    own = {ref.name for ref in captured.outputs} | {output for output, _, _ in captured.mutations}
    outputs = [o for o in proto.graph.output if o.name in own]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def call_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def dynamic_dims(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Mapping[str, Iterable[int]] | None
) -> set[tuple[int, int]] | None:
    if not axes:
        return None
    leaves = leaves_of((args, kwargs))
    every = leaf_names(model, args, kwargs)
    names = {name: i for i, name in enumerate(every) if isinstance(leaves[i], torch.Tensor)}
    dims: set[tuple[int, int]] = set()
    for name, wanted in axes.items():
        if name not in names:
            raise InvalidArgumentError(f"dynamic_axes names the input {name!r}; the tensors are {sorted(names)}")
        rank = leaves[names[name]].dim()
        for axis in wanted:
            if not -rank <= axis < rank:
                raise InvalidArgumentError(f"dynamic_axes: the input {name!r} has {rank} axes, got {axis}")
            dims.add((names[name], axis % rank))
    return dims


def name_outputs(proto: onnx.ModelProto, captured: Captured) -> list[str]:
    """Gives graph outputs the names that users know; those of the module's own results are returned."""
    paths = paths_of(unflatten(captured.outputs, captured.out_spec))
    taken = {v.name for v in (*proto.graph.input, *proto.graph.value_info, *proto.graph.initializer)}
    renamed: dict[str, str] = {}
    for path, ref in zip(paths, captured.outputs, strict=True):
        if ref.kind not in ("tensor", "size") or ref.name is None or ref.name in renamed:
            continue
        parts = list(path)
        if not parts or parts[0].isdigit():
            parts.insert(0, "output")
        renamed[ref.name] = unique(".".join(parts), taken - {ref.name})
        taken.add(renamed[ref.name])
    results = list(renamed.values())
    users = {leaf: name for leaf, name in captured.user_inputs}
    for output, kind, target in captured.mutations:
        name = users[target] if kind == "input" else target  # type: ignore[index]
        renamed[output] = unique(f"{name}_new", taken - {output})
        taken.add(renamed[output])
    rename(proto.graph, renamed)
    return results


def unique(name: str, taken: set[str]) -> str:
    candidate, i = name, 0
    while candidate in taken:
        i += 1
        candidate = f"{name}_{i}"
    return candidate


def rename(proto: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Values of a graph, in the graphs inside it as well."""
    for value in (*proto.input, *proto.output, *proto.value_info, *proto.initializer):
        value.name = names.get(value.name, value.name)
    for node in proto.node:
        for values in (node.input, node.output):
            for i, name in enumerate(values):
                if name in names:
                    values[i] = names[name]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                rename(inner, names)


def ways_of(captured: Captured) -> list[str]:
    """What the graph holds for alone: a sentence for each branch on what the example's tensors hold."""
    return [f"{branch.line or 'a branch'} is {branch.answer}" for branch in captured.branches]


def embed_constants(proto: onnx.ModelProto, captured: Captured) -> None:
    """Tensors that are neither parameter nor buffer belong to the graph."""
    kept = [v for v in proto.graph.input if v.name not in captured.constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name, tensor in captured.constants.items():
        proto.graph.initializer.append(tensor_proto(tensor.detach().cpu(), name))

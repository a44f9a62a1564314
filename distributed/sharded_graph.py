"""A captured graph whose trained parameters are divided: each becomes shard + AllGather + views.

Post-export processing: done on the model before the gradient is built, so that the gradient builder makes the
ReduceScatter; the order of the collectives is that in which the model reads its parameters, on all ranks alike.
Not here: the shards (gathered_bucket.py), and when collectives start (csrc/transforms/split_collectives.h).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from ortmodule.capture.convert.onnx_graph import ORTMODULE, onnx_type
from ortmodule.distributed.collectives import Ranks
from ortmodule.distributed.gathered_bucket import GatheredBucket
from ortmodule.distributed.policy import ZeroPolicy
from ortmodule.errors import CaptureError
from ortmodule.graph_transition import PostExportProcessedModelInfo

__all__ = ["collectives_of", "gather_in_graph", "names_read", "replace_field", "shard_name"]


def shard_name(number: int) -> str:
    """The graph input that is the shard of a bucket."""
    return f"zero.shard.{number}"


def gather_in_graph(
    info: PostExportProcessedModelInfo,
    buckets: Sequence[GatheredBucket],
    names: dict[str, tuple[int, int]],
    ranks: Ranks,
    policy: ZeroPolicy,
) -> PostExportProcessedModelInfo:
    """The same graph over shards.

    Args:
        info: of a captured graph.
        buckets: in the order in which they are gathered.
        names: of every name of a divided parameter, its bucket and slot.
        policy: whether backward gathers again, and how much is under way ahead of its use.
    """
    model = onnx.ModelProto()
    model.CopyFrom(info.post_export_processed_model)
    graph = model.graph
    read: dict[int, dict[int, str]] = {}
    for value in graph.input:
        if value.name in names:
            number, slot = names[value.name]
            read.setdefault(number, {})[slot] = value.name
    if not read:
        return info
    divided = {name for slots in read.values() for name in slots.values()}
    _refuse(info, divided)
    gathers: dict[str, list[onnx.NodeProto]] = {}  # of each parameter those of its bucket
    shards = {}
    for number in sorted(read):
        bucket = buckets[number]
        bucket.used |= set(read[number])
        gathers.update(dict.fromkeys(read[number].values(), _nodes(bucket, number, read[number], ranks, policy)))
        shards[shard_name(number)] = bucket.leaf
        graph.input.append(
            helper.make_tensor_value_info(shard_name(number), onnx_type(bucket.leaf.dtype), [bucket.layout.shard_numel])
        )
    kept = [value for value in graph.input if value.name not in divided]
    replace_field(graph.input, kept)
    replace_field(graph.node, _before_readers(graph.node, gathers))
    if all(opset.domain != ORTMODULE for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(ORTMODULE, 1))
    inputs = [value.name for value in graph.input]
    wanted = {name for name in info.onnx_graph_input_names_require_grad if name not in divided}
    if set(info.onnx_graph_input_names_require_grad) & divided:
        wanted |= set(shards)
    rest = {name: tensor for name, tensor in info.buffer_for_ort_runs.items() if name not in divided}
    return dataclasses.replace(
        info,
        onnx_graph_input_names=inputs,
        onnx_graph_input_names_require_grad=[name for name in inputs if name in wanted],
        buffer_for_ort_runs={**rest, **shards},
        post_export_processed_model=model,
        replaced={**info.replaced, **shards},
    )


def _refuse(info: PostExportProcessedModelInfo, divided: set[str]) -> None:
    """Raises CaptureError where the forward needs a divided parameter itself and not its value."""
    captured = info.captured
    bases = [ref.view[0] if ref.view is not None else ref for ref in captured.result_refs]
    returned = {ref.name for ref in bases if ref.kind == "input"} & divided
    written = {str(target) for _, _, target in captured.mutations} & divided
    for names, what in ((returned, "returns"), (written, "writes")):
        if names:
            raise CaptureError(f"the forward {what} the parameter {min(map(str, names))}, which is divided among ranks")


def _nodes(
    bucket: GatheredBucket, number: int, read: dict[int, str], ranks: Ranks, policy: ZeroPolicy
) -> list[onnx.NodeProto]:
    """Shard -> whole -> flat parts -> parameters."""
    shard = shard_name(number)
    attributes: dict[str, Any] = {
        "group": ranks.shard.group_name,
        "world": ranks.world,
        "again": int(policy.regather),
        "window": policy.prefetch_bytes,
    }
    if bucket.dtype != bucket.leaf.dtype:
        attributes["to"] = onnx_type(bucket.dtype)
    whole = f"{shard}.whole"
    out = [helper.make_node("AllGather", [shard], [whole], f"{shard}.gather", domain=ORTMODULE, **attributes)]
    sizes = [slot.numel for slot in bucket.layout.slots]
    if (rest := bucket.layout.numel - bucket.layout.used) > 0:
        sizes.append(rest)
    parts = [f"{shard}.part.{i}" for i in range(len(sizes))]
    out.append(_constant(f"{shard}.sizes", sizes))
    out.append(helper.make_node("Split", [whole, f"{shard}.sizes"], parts, f"{shard}.split", axis=0))
    for slot, name in sorted(read.items()):
        out.append(_constant(f"{name}.shape", list(bucket.layout.slots[slot].shape)))
        out.append(helper.make_node("Reshape", [parts[slot], f"{name}.shape"], [name], f"{name}.view"))
    return out


def _before_readers(
    nodes: Iterable[onnx.NodeProto], makers: Mapping[str, Sequence[onnx.NodeProto]]
) -> list[onnx.NodeProto]:
    """`nodes` with the makers of each value right before the first of them that reads it. So a gathered parameter is
    there no longer than it is used, and the builder of gradients, which goes backwards, sums its gradient as soon as it
    is made.
    """
    left = dict(makers)
    out: list[onnx.NodeProto] = []
    for node in nodes:
        for name in names_read(node):
            if name in left:
                made = left[name]
                out += made
                left = {other: its for other, its in left.items() if its is not made}
        out.append(node)
    return out


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, attribute.g):
            for inner in graph.node:
                yield from names_read(inner)


def _constant(name: str, values: list[int]) -> onnx.NodeProto:
    tensor = helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], f"{name}.constant", value=tensor)


def replace_field(field: object, values: Sequence[object]) -> None:
    """Makes copies of `values` what a repeated field of a message holds."""
    values = list(values)
    copies = [type(value).FromString(value.SerializeToString()) for value in values]  # type: ignore[attr-defined]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]


def collectives_of(plans: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
    """What a session's plans do together with other ranks, in order: by step's node, the operator and the bytes of what
    is gathered, or of what is summed.
    """
    out = {}
    for plan in plans:
        for step in plan["steps"]:
            op = step["op"].removeprefix(f"{ORTMODULE}::")
            if op in ("AllGather", "ReduceScatter", "AllReduce", "AllToAll"):
                whole = step["outputs" if op == "AllGather" else "inputs"][0]
                out[step["node"]] = (f"{op} of {step['inputs'][0]['type']}", whole["bytes"] or 0)
    return out

"""A captured graph whose parameters may still be on their way when it starts (stages 1 and 2, `overlap_gather`).

Each trained parameter is waited for right before the first node that reads it, so that what the optimizer has made of
the later layers is gathered while the first ones compute. A wait for what has arrived costs a look into a table.
Not here: who starts the gathers (optimizer.py), and parameters that are divided themselves (sharded_graph.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx
from onnx import helper

from ortmodule.capture.convert.onnx_graph import ORTMODULE
from ortmodule.distributed.sharded_graph import names_read, replace_field
from ortmodule.graph_transition import PostExportProcessedModelInfo

__all__ = ["wait_in_graph"]


def wait_in_graph(info: PostExportProcessedModelInfo, names: Collection[str]) -> PostExportProcessedModelInfo:
    """The same graph; `names`: of the parameters, every name of a tied one."""
    model = onnx.ModelProto()
    model.CopyFrom(info.post_export_processed_model)
    graph = model.graph
    awaited = {value.name: f"{value.name}.there" for value in graph.input if value.name in names}
    # What the forward writes or gives back is meant itself, and not its value: there its result is left alone.
    for value in graph.output:
        awaited.pop(value.name, None)
    if not awaited:
        return info
    left, nodes = dict(awaited), []
    for node in graph.node:
        for name in [name for name in names_read(node) if name in left]:
            there = left.pop(name, None)
            if there is not None:
                nodes.append(helper.make_node("CollectiveWait", [name], [there], f"{name}.wait", domain=ORTMODULE))
        _rename(node, awaited)
        nodes.append(node)
    replace_field(graph.node, nodes)
    if all(opset.domain != ORTMODULE for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(ORTMODULE, 1))
    return dataclasses.replace(info, post_export_processed_model=model)


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    for i, name in enumerate(node.input):
        node.input[i] = names.get(name, name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, attribute.g):
            for inner in graph.node:
                _rename(inner, names)

"""What is mutated: ONNX's own node tests, one model per operator of the tables of samples, and small networks.

`write_seeds(path)` collects them into one file, which workers read: making them takes longer than running them.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import nn

LARGEST = 1 << 16  # bytes of a seed: more of it is weights


def write_seeds(path: Path) -> dict[str, int]:
    """Writes all seeds, by group; returns how many each group has."""
    groups: dict[str, list[bytes]] = {}
    for group, model in _models():
        if len(model) <= LARGEST:
            groups.setdefault(group, []).append(model)
    with open(path, "wb") as file:
        for group, models in groups.items():
            file.write(struct.pack("<16sI", group.encode(), len(models)))
            for model in models:
                file.write(struct.pack("<I", len(model)) + model)
    return {group: len(models) for group, models in groups.items()}


def read_seeds(path: Path) -> dict[str, list[bytes]]:
    """What write_seeds() wrote."""
    groups: dict[str, list[bytes]] = {}
    data = path.read_bytes()
    at = 0
    while at < len(data):
        name, count = struct.unpack_from("<16sI", data, at)
        at += 20
        models = groups.setdefault(name.rstrip(b"\0").decode(), [])
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            models.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    return groups


def _models() -> Iterator[tuple[str, bytes]]:
    from ..conformance.cases import cases, model_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("node", "simple"):
            for case in cases(kind).values():
                yield kind, model_of(case).SerializeToString()
        for model in _operators():
            yield "operators", model
        for model in _handmade():
            yield "handmade", model.SerializeToString()
        for model in _networks():
            yield "networks", model.SerializeToString()


def _operators() -> Iterator[bytes]:
    from ..ops.engine import build
    from ..ops.samples import ROWS

    for row in ROWS:
        try:
            yield build(row, next(iter(row.cases(torch.float32)))).model.SerializeToString()
        except Exception:  # a row whose first case is no model of one node
            continue


def _networks() -> Iterator[onnx.ModelProto]:
    """Captured as ORTModule captures them, and with their gradients as export_training_graph writes them."""
    from ortmodule import export_training_graph
    from ortmodule.capture import capture_for_call

    torch.manual_seed(0)
    x, image, tokens = torch.randn(2, 4), torch.randn(1, 2, 6, 6), torch.tensor([[1, 2, 3], [3, 2, 1]])
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    examples: list[tuple[nn.Module, torch.Tensor]] = [
        (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), x),
        (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), image),
        (nn.Sequential(nn.Embedding(8, 4), nn.Dropout(0.5), nn.Linear(4, 8), nn.LogSoftmax(-1)), tokens),
        (nn.LSTM(4, 3, batch_first=True), torch.randn(2, 3, 4)),
        (layer, torch.randn(2, 3, 4)),
    ]
    for module, example in examples:
        yield capture_for_call(module, (example,), {}).model
        yield export_training_graph(module, example)


def _handmade() -> Iterator[onnx.ModelProto]:
    floats = TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", floats, ["n", 4])
    y = helper.make_tensor_value_info("y", floats, None)
    weight = helper.make_tensor("w", floats, [4, 4], np.ones(16, np.float32))

    def model(nodes: list[onnx.NodeProto], functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("own", 1)]
        graph = helper.make_graph(nodes, "g", [x], [y], [weight])
        return helper.make_model(graph, ir_version=11, opset_imports=imports, functions=functions)

    node, imports = helper.make_node, [helper.make_opsetid("", 23), helper.make_opsetid("own", 1)]
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [leaky], imports, ["slope"])
    outer_nodes = [node("Inner", ["a"], ["t"], domain="own", slope=0.1), node("MatMul", ["t", "m"], ["b"])]
    outer = helper.make_function("own", "Outer", ["a", "m"], ["b"], outer_nodes, imports)
    yield model([node("Outer", ["x", "w"], ["y"], domain="own")], (inner, outer))

    sparse = onnx.SparseTensorProto(dims=[4, 4])
    sparse.values.CopyFrom(helper.make_tensor("s", floats, [2], [1.0, 2.0]))
    sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [2], [1, 6]))
    with_sparse = model([node("MatMul", ["x", "s"], ["y"])])
    with_sparse.graph.sparse_initializer.add().CopyFrom(sparse)
    yield with_sparse

    outside = model([node("MatMul", ["x", "w"], ["y"])])
    tensor = outside.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": "0", "length": "64"}.items():
        tensor.external_data.add(key=key, value=value)
    yield outside

    nested = helper.make_graph(
        [node("Add", ["x", "w0"], ["deep"])], "deepest", [], [helper.make_tensor_value_info("deep", floats, None)],
        [helper.make_tensor("w0", floats, [], [1.0])],
    )  # fmt: skip
    for depth in range(4):
        branch = node("If", ["c"], [f"o{depth}"], then_branch=nested, else_branch=nested)
        condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
        out = helper.make_tensor_value_info(f"o{depth}", floats, None)
        nested = helper.make_graph([branch], f"level{depth}", [], [out], [condition])
    choice = helper.make_tensor("choice", TensorProto.BOOL, [], [True])
    conditional = model([node("If", ["choice"], ["y"], then_branch=nested, else_branch=nested)])
    conditional.graph.initializer.append(choice)
    yield conditional

    sized = model([
        node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["z"]), node("Expand", ["w", "s"], ["e"]),
        node("Tile", ["z", "s"], ["t"]), node("Size", ["t"], ["k"]), node("Cast", ["k"], ["y"], to=floats),
    ])  # fmt: skip
    sized.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2*(s0 + 1)//3"
    yield sized

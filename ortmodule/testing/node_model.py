"""A model of one node, made from tensors: what an operator is tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper

from .. import _C

__all__ = ["ELEMENT_TYPES", "NodeModel", "NodesOf", "node_model"]

# Makes the nodes of a call from the names of inputs and outputs and the attributes.
NodesOf = Callable[[list[str], list[str], dict[str, Any]], Sequence[onnx.NodeProto | onnx.ValueInfoProto]]

_OPSETS = {
    "ai.onnx.ml": 3,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
    "ai.ortmodule": 1,
    "org.pytorch.aten": 1,
}

ELEMENT_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.uint16: TensorProto.UINT16,
    torch.uint32: TensorProto.UINT32,
    torch.uint64: TensorProto.UINT64,
    torch.bool: TensorProto.BOOL,
    torch.float8_e4m3fn: TensorProto.FLOAT8E4M3FN,
    torch.float8_e5m2: TensorProto.FLOAT8E5M2,
}


def tensor_proto(name: str, value: torch.Tensor) -> TensorProto:
    """A constant with the tensor's exact bytes."""
    raw = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return helper.make_tensor(name, ELEMENT_TYPES[value.dtype], list(value.shape), raw, raw=True)


def attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, torch.dtype):
        value = int(ELEMENT_TYPES[value])
    elif isinstance(value, torch.Tensor):
        value = tensor_proto(name, value)
    kind = onnx.AttributeProto.INTS if isinstance(value, list | tuple) and not value else None
    return helper.make_attribute(name, value, attr_type=kind)


@dataclass(frozen=True)
class NodeModel:
    """A model of one node. `slots` are the operator's inputs that are graph inputs, in their order."""

    model: onnx.ModelProto
    slots: tuple[int, ...]
    _sessions: dict[Any, _C.Session] = field(default_factory=dict, compare=False, repr=False)

    @property
    def names(self) -> list[str]:
        """Names of the graph's inputs."""
        return [v.name for v in self.model.graph.input]

    def session(self, trainable: Sequence[str] = (), device: str = "cpu", keep_stages: bool = False) -> _C.Session:
        """The compiled model, the same one for the same arguments; `trainable` names the inputs that get a gradient."""
        key = (tuple(trainable), device, keep_stages)
        if key not in self._sessions:
            options = {"dropout": "torch", "device": device, "keep_stages": keep_stages}
            mode = "training" if trainable else "inference"
            self._sessions[key] = _C.Session(self.model.SerializeToString(), mode, list(trainable), options)
        return self._sessions[key]


def node_model(
    op: str,
    inputs: Sequence[torch.Tensor | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    opset: int = 23,
    outputs: int = 1,
    constants: Sequence[int] = (),
    symbolic: bool = False,
    identity_inputs: bool = False,
    nodes_of: NodesOf | None = None,
) -> NodeModel:
    """The model of one call of an operator.

    Args:
        inputs: example tensors in the operator's order, None for an absent optional one.
        attributes: a torch.dtype becomes a TensorProto data type, a torch.Tensor a tensor attribute.
        opset: version of ai.onnx that the model imports.
        constants: inputs that the model holds as initializers instead of taking them at run time.
        symbolic: every size above one is a symbol, equal sizes the same one, as torch.export names them.
        identity_inputs: each floating input is negated twice on its way to the node, so that the node's operands are
            intermediate values that its kernel may overwrite.
        nodes_of: makes the nodes where one node with these attributes is not the whole call: its values are no tensors,
            or its subgraphs read values around it. What it gives beside nodes are types that the model declares.
    """
    infos, initializers, names, nodes, slots = [], [], [], [], []
    types: list[onnx.ValueInfoProto] = []
    for i, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        name = f"x{i}"
        names.append(name)
        if i in constants:
            initializers.append(tensor_proto(name, value))
            continue
        slots.append(i)
        dims = [f"s{d}" if symbolic and d > 1 else d for d in value.shape]
        infos.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], dims))
        if identity_inputs and value.dtype.is_floating_point:
            nodes.append(helper.make_node("Neg", [name], [f"{name}_negative"]))
            nodes.append(helper.make_node("Neg", [f"{name}_negative"], [f"{name}_copy"]))
            names[-1] = f"{name}_copy"
    results = [f"y{i}" for i in range(outputs)]
    if nodes_of is not None:
        for made in nodes_of(names, results, dict(attributes or {})):
            if isinstance(made, onnx.NodeProto):
                nodes.append(made)
            else:
                types.append(made)
    else:
        node = onnx.NodeProto(op_type=op, domain=domain, name="node", input=names, output=results)
        node.attribute.extend(attribute(k, v) for k, v in (attributes or {}).items())
        nodes.append(node)
    graph = helper.make_graph(nodes, "one_node", infos, [onnx.ValueInfoProto(name=n) for n in results], initializers)
    graph.value_info.extend(types)
    opsets = [helper.make_opsetid(name, version) for name, version in {"": opset, **_OPSETS}.items()]
    return NodeModel(helper.make_model(graph, opset_imports=opsets, ir_version=11), tuple(slots))

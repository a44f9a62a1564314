"""Builds a model of one node and runs it through the engine, in inference or with gradients.

Sizes may be symbolic: then every size above one is a symbol, equal sizes the same one, as torch.export names them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx import helper

from ortmodule import _C
from ortmodule.testing.node_model import ELEMENT_TYPES, attribute, tensor_proto

from .table import Case, Row

OPSETS = {
    "": 23,
    "ai.onnx.ml": 3,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
    "ai.ortmodule": 1,
    "org.pytorch.aten": 1,
}


@dataclass
class NodeModel:
    """A model of one node. `slots` are the operator's inputs that are graph inputs, in their order."""

    model: onnx.ModelProto
    slots: list[int]

    @property
    def names(self) -> list[str]:
        return [v.name for v in self.model.graph.input]


def build(row: Row, case: Case, *, symbolic: bool = False, identity_inputs: bool = False) -> NodeModel:
    """The model of a case. With `identity_inputs` each floating input is negated twice on its way to the node, so that
    the node's operands are intermediate values that its kernel may overwrite."""
    inputs, initializers, names, nodes, slots = [], [], [], [], []
    for i, value in enumerate(case.inputs):
        if value is None:
            names.append("")
            continue
        name = f"x{i}"
        names.append(name)
        if i in case.constants:
            initializers.append(tensor_proto(name, value))
            continue
        slots.append(i)
        dims = [f"s{d}" if symbolic and d > 1 else d for d in value.shape]
        inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], dims))
        if identity_inputs and value.dtype.is_floating_point:
            nodes.append(helper.make_node("Neg", [name], [f"{name}_negative"]))
            nodes.append(helper.make_node("Neg", [f"{name}_negative"], [f"{name}_copy"]))
            names[-1] = f"{name}_copy"
    outputs = [f"y{i}" for i in range(case.outputs)]
    if row.nodes is not None:
        nodes.extend(row.nodes(names, outputs, case.attributes))
    else:
        node = onnx.NodeProto(op_type=row.name, domain=row.domain, name="node", input=names, output=outputs)
        node.attribute.extend(attribute(k, v) for k, v in case.attributes.items())
        nodes.append(node)
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "one_node", inputs, results, initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {**OPSETS, "": row.opset}.items()]
    return NodeModel(helper.make_model(graph, opset_imports=opsets, ir_version=11), slots)


def differentiated(row: Row, case: Case) -> list[int]:
    """The inputs whose gradients are tested."""
    if not row.differentiable:
        return []
    return [
        i
        for i, value in enumerate(case.inputs)
        if value is not None
        and value.dtype.is_floating_point
        and i not in case.constants
        and (row.grads is None or i in row.grads)
    ]


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def run_engine(
    row: Row, case: Case, inputs: Sequence[torch.Tensor | None], device: str = "cpu", **how: bool
) -> tuple[torch.Tensor, ...]:
    """The engine's outputs for `inputs` (on `device`) in place of the case's; those that require grad are trained."""
    built = build(row, case, **how)
    values = [inputs[i] for i in built.slots]
    trainable = [n for n, v in zip(built.names, values) if v is not None and v.requires_grad]
    options = {"dropout": "torch", "device": device}
    session = _C.Session(built.model.SerializeToString(), "training" if trainable else "inference", trainable, options)
    return tuple(session.run(values))


def declared_types(row: Row, case: Case, **how: bool) -> list[tuple[int, list[int | str] | None]]:
    """What the operator's rule says of each output: element type and dims (None: rank unknown)."""
    built = build(row, case, **how)
    session = _C.Session(built.model.SerializeToString(), "inference", [], {"keep_stages": True})
    out: list[tuple[int, list[int | str] | None]] = []
    for value in onnx.load_from_string(session.stage_model("resolved")).graph.output:
        kind = value.type.tensor_type
        dims = [d.dim_param or d.dim_value for d in kind.shape.dim] if kind.HasField("shape") else None
        out.append((kind.elem_type, dims))
    return out


def run_reference(
    row: Row, case: Case, inputs: Sequence[torch.Tensor | None], device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """PyTorch's outputs; tensors that the reference makes or takes from attributes are on `device` too."""
    attributes = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in case.attributes.items()}
    with torch.device(device) if device != "cpu" else contextlib.nullcontext():
        return as_tuple(row.reference(*inputs, **attributes))[: case.outputs]


def leaves(row: Row, case: Case, device: str = "cpu") -> list[torch.Tensor | None]:
    """Fresh leaves with the case's values (and strides), requiring grad where the row differentiates."""
    wanted = differentiated(row, case)
    return [
        v if v is None else v.detach().clone(memory_format=torch.preserve_format).to(device).requires_grad_(i in wanted)
        for i, v in enumerate(case.inputs)
    ]


def gradients(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Gradients of a fixed random projection of the differentiable outputs."""
    generator = torch.Generator().manual_seed(7)
    flowing = [y for y in outputs if y.requires_grad]
    seeds = [torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype) - 0.3 for y in flowing]
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return list(torch.autograd.grad(flowing, wanted, seeds, allow_unused=True))


def strided(value: torch.Tensor | None) -> torch.Tensor | None:
    """The same elements with other strides, where there are two axes to swap."""
    if value is None or value.dim() < 2:
        return value
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)

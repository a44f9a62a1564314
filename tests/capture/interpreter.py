"""Executes a captured model with torch, node by node, so that autograd flows through it.

It is the tests' reading of a captured graph, independent of the C++ core. Nothing here is fast.
"""

from __future__ import annotations

import re
from typing import Any

import onnx
import torch

from ortmodule.capture import Captured
from ortmodule.capture.convert import aten_node

from .onnx_ops import ARITHMETIC, CONTROLS, TYPES, tensor_of


def run(captured: Captured, leaves: list[Any], module: torch.nn.Module) -> dict[str, Any]:
    """All values of the graph, by name, for a call with these flat leaves."""
    model = captured.model
    env: dict[str, Any] = {"": None, **captured.constants}
    env |= {name: leaves[i] for i, name in captured.user_inputs}
    env |= {n: p for n, p in module.named_parameters(remove_duplicate=False) if n in captured.parameters}
    env |= {n: b for n, b in module.named_buffers(remove_duplicate=False) if n in captured.buffers}
    for proto in model.graph.initializer:
        env[proto.name] = tensor_of(proto)
    symbols: dict[str, int] = {}
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if re.fullmatch(r"[a-z]\d+", dim.dim_param):
                symbols[dim.dim_param] = env[info.name].shape[axis]
    for node in model.graph.node:
        results = execute(node, [env[x] for x in node.input], symbols)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        env |= {name: value for name, value in zip(node.output, results, strict=False) if name}
    check_declared(model, env, symbols)
    return env


def check_declared(model: onnx.ModelProto, env: dict[str, Any], symbols: dict[str, int]) -> None:
    """Every value has the dtype and, where its symbols are bound to inputs, the sizes that the graph declares."""
    for info in [*model.graph.value_info, *model.graph.output]:
        value, tensor = env.get(info.name), info.type.tensor_type
        if value is None:
            continue
        assert value.dtype == TYPES[tensor.elem_type], (info.name, value.dtype, tensor.elem_type)
        assert len(tensor.shape.dim) == value.ndim, (info.name, value.shape)
        for size, dim in zip(value.shape, tensor.shape.dim, strict=True):
            wanted = dim.dim_value if dim.HasField("dim_value") else evaluate(dim.dim_param, symbols)
            assert wanted is None or size == wanted, (info.name, value.shape, str(tensor.shape))


def evaluate(text: str, symbols: dict[str, int]) -> int | None:
    try:
        return int(eval(text, {"Max": max, "Min": min, **symbols}))
    except NameError:
        return None


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    text = {n: v.decode() if isinstance(v, bytes) else v for n, v in found.items()}
    return {
        n: [s.decode() for s in v] if isinstance(v, list) and v and isinstance(v[0], bytes) else v
        for n, v in text.items()
    }


def execute(node: onnx.NodeProto, inputs: list[Any], symbols: dict[str, int]) -> Any:
    attrs = attributes(node)
    if node.op_type == "ATen":
        bound = attrs.get("symbols") or []
        scope = {**symbols, **{s: int(v) for s, v in zip(bound, inputs[len(inputs) - len(bound) :], strict=True)}}
        return aten_node.decode(
            attrs["operator"], attrs["overload"], attrs["arguments"], inputs, lambda t: evaluate(t, scope)
        )
    if node.op_type == "Sizes":
        scope = {**symbols, **dict(zip(attrs.get("symbols") or [], (int(v) for v in inputs), strict=True))}
        sizes = [evaluate(t, scope) for t in attrs["exprs"]]
        return torch.tensor(sizes[0] if attrs["scalar"] else sizes, dtype=torch.int64)
    if node.op_type in ARITHMETIC:
        inputs = inputs if node.op_type != "Identity" else [inputs[0], inputs[0]]
        dtypes = {i.dtype for i in inputs if i is not None}
        assert len(dtypes) == 1 or node.op_type == "Where", f"{node.op_type} mixes {dtypes}"
        return ARITHMETIC[node.op_type](*inputs)
    return CONTROLS[node.op_type](*inputs, **attrs)

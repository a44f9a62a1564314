"""Row of FlexAttention: modifiers of the scores and of the probabilities, some of which read values around the node."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper

from ortmodule.testing.node_model import ELEMENT_TYPES

from ..table import Case, Row, rand
from .control import graph, node

Tensor = torch.Tensor


def constant(name: str, value: list[int] | int) -> onnx.NodeProto:
    shape = [len(value)] if isinstance(value, list) else []
    data = value if isinstance(value, list) else [value]
    return node("Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, shape, data))


def positions(axis: int, shape: list[int], name: str) -> list[onnx.NodeProto]:
    """0 .. size - 1 along an axis of the scores, shaped to broadcast over them."""
    return [
        node("Shape", ["s"], [f"{name}_size"], start=axis, end=axis + 1),
        node("Squeeze", [f"{name}_size"], [f"{name}_end"]),
        constant(f"{name}_zero", 0),
        constant(f"{name}_one", 1),
        node("Range", [f"{name}_zero", f"{name}_end", f"{name}_one"], [f"{name}_range"]),
        constant(f"{name}_shape", shape),
        node("Reshape", [f"{name}_range", f"{name}_shape"], [name]),
    ]


def modifier(kind: str, extra: str) -> onnx.GraphProto:
    """Each computes "t" from "s"; `extra` is a value of the graph around it."""
    nodes = {
        "bias": [node("Add", ["s", extra], ["t"])],
        "softcap": [node("Div", ["s", extra], ["r"]), node("Tanh", ["r"], ["u"]), node("Mul", ["u", extra], ["t"])],
        "scaled": [node("Mul", ["s", extra], ["t"])],
        "squared": [node("Mul", ["s", "s"], ["t"])],
        "causal": [
            *positions(2, [-1, 1], "row"),
            *positions(3, [1, -1], "column"),
            node("GreaterOrEqual", ["row", "column"], ["seen"]),
            node("CastLike", [extra, "s"], ["hidden"]),
            node("Where", ["seen", "s", "hidden"], ["t"]),
        ],
    }
    return graph(kind, ["s"], nodes[kind], ["t"])


def flex_nodes(names: list[str], outputs: list[str], attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    attributes = dict(attributes)
    for name in ("score_mod", "prob_mod"):
        if name in attributes:
            attributes[name] = modifier(attributes[name], names[3])
    if "softmax_precision" in attributes:
        attributes["softmax_precision"] = ELEMENT_TYPES[attributes["softmax_precision"]]
    return [node("FlexAttention", names[:3], outputs, domain="ai.onnx.preview", **attributes)]


MODIFIERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bias": lambda s, extra: s + extra,
    "softcap": lambda s, extra: torch.tanh(s / extra) * extra,
    "scaled": lambda s, extra: s * extra,
    "squared": lambda s, extra: s * s,
    "causal": lambda s, extra: torch.where(torch.ones(s.shape[-2:], dtype=torch.bool).tril(), s, extra.to(s.dtype)),
}


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extra: Tensor | None = None,
    *,
    score_mod: str = "",
    prob_mod: str = "",
    scale: float | None = None,
    softmax_precision: torch.dtype | None = None,
) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    root = math.sqrt(1 / math.sqrt(q.shape[3]) if scale is None else scale)
    kind = softmax_precision or (torch.float64 if q.dtype == torch.float64 else torch.float32)
    scores = ((q * root) @ (k * root).mT).to(kind)
    if score_mod and extra is not None:
        scores = MODIFIERS[score_mod](scores, extra)
    probabilities = torch.softmax(scores, -1)
    if prob_mod and extra is not None:
        probabilities = MODIFIERS[prob_mod](probabilities, extra)
    return (probabilities @ v.to(kind)).to(q.dtype)


def flex_cases(dtype: torch.dtype) -> list[Case]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = rand(2, 4, 3, 6, dtype=dtype), rand(2, 2, 5, 6, dtype=dtype), rand(2, 2, 5, 7, dtype=dtype)
    equal = rand(2, 4, 5, 6, dtype=dtype), rand(2, 4, 5, 7, dtype=dtype)
    bias, factor = rand(4, 1, 1, dtype=wide), torch.tensor(1.5, dtype=wide)
    lowest = torch.tensor(-1e30, dtype=wide)
    return [
        Case((q, *equal)),
        Case((q, k, v), {"scale": 0.3}),
        Case((q, k, v, bias), {"score_mod": "bias"}),
        Case((q, *equal, factor), {"score_mod": "softcap", "prob_mod": "scaled"}),
        Case((q, k, v, bias), {"prob_mod": "squared", "score_mod": "bias", "scale": 0.5}),
        Case((q, *equal, lowest), {"score_mod": "causal"}, constants=(3,)),
        Case((q, k, v, bias.double()), {"score_mod": "bias", "softmax_precision": torch.float64}),
    ]


ROWS = [
    Row(
        "FlexAttention",
        flex_attention,
        flex_cases,
        "ai.onnx.preview",
        nodes=flex_nodes,
        opset=24,
        tolerance=5e-2,
        refuses=True,
    )
]

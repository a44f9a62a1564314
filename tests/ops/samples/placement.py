"""Copies between places, of which there is one here, and nodes that run as one; more: tests/device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx import helper

from ..table import Case, Row, rand

OWN = "ai.ortmodule"


def cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(4, 3, dtype=dtype),)), Case((rand(7, dtype=dtype),))]


def pairs(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(4, 3, dtype=dtype), rand(4, 3, dtype=dtype)), outputs=2)]


def claimed(names: list[str], outputs: list[str], attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    nodes = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Tanh", ["c"], ["d"])]
    values = [[onnx.ValueInfoProto(name=name) for name in group] for group in (["a", "b"], ["c", "d"])]
    body = helper.make_graph(nodes, "both", *values)
    return [helper.make_node("Claimed", names, outputs, domain=OWN, body=body, claim="product_and_tanh")]


ROWS = [
    *(Row(op, lambda x: x * 1, cases, OWN, differentiable=False) for op in ("MemcpyToHost", "MemcpyToDevice")),
    Row("Claimed", lambda a, b: (a * b, torch.tanh(a * b)), pairs, OWN, differentiable=False, nodes=claimed),
]

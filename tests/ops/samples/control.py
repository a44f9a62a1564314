"""Rows of If, Loop, Scan and of the operators on sequences and optionals.

Their models hold more than one node: sequences are made and taken apart beside the operator, and subgraphs read values
of the graph around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper

from ..table import Case, Row, ints, rand, scalar

Names = list[str]


def graph(name: str, inputs: Sequence[str], nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> onnx.GraphProto:
    """A subgraph without types: the operator gives its inputs theirs."""
    return helper.make_graph(
        nodes, name, [onnx.ValueInfoProto(name=n) for n in inputs], [onnx.ValueInfoProto(name=n) for n in outputs]
    )


node = helper.make_node


# -- If: then x * w, 2 * x; else x - w, w ------------------------------------------------------------------------------
def if_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    cond, x, w = names
    then = graph("then", [], [node("Mul", [x, w], ["t0"]), node("Add", [x, x], ["t1"])], ["t0", "t1"])
    other = graph("else", [], [node("Sub", [x, w], ["e0"]), node("Identity", [w], ["e1"])], ["e0", "e1"])
    return [node("If", [cond], outputs, then_branch=then, else_branch=other)]


def if_reference(cond: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * w, x + x) if cond else (x - w, w * 1)


def if_cases(dtype: torch.dtype) -> list[Case]:
    return [
        Case((torch.tensor(flag), rand(3, 4, dtype=dtype), rand(3, 4, dtype=dtype)), outputs=2)
        for flag in (True, False)
    ]


# -- Loop: v = tanh(v * w) until M or v[0, 0] leaves the bound; the scan output is v's step ----------------------------
def loop_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    trips, v, w, bound = names
    body = graph(
        "body",
        ["i", "cond_in", "v_in"],
        [
            node("Mul", ["v_in", w], ["product"]),
            node("Tanh", ["product"], ["v_out"]),
            node("Sub", ["v_out", "v_in"], ["step"]),
            node("ReduceMax", ["v_out"], ["largest"], keepdims=0),
            node("Less", ["largest", bound], ["cond_out"]),
        ],
        ["cond_out", "v_out", "step"],
    )
    return [node("Loop", [trips, "", v], outputs, body=body)]


def loop_reference(trips: torch.Tensor, v: torch.Tensor, w: torch.Tensor, bound: torch.Tensor) -> tuple[Any, ...]:
    steps = []
    for _ in range(int(trips)):
        before, v = v, torch.tanh(v * w)
        steps.append(v - before)
        if not v.max() < bound:
            break
    return v * 1, torch.stack(steps) if steps else v.new_zeros((0, *v.shape))


def loop_cases(dtype: torch.dtype) -> list[Case]:
    bounds = (2.0, 2.0, 0.5)
    return [
        Case(
            (scalar(trips), rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype), torch.tensor(bound, dtype=dtype)),
            outputs=2,
        )
        for trips, bound in zip((3, 0, 6), bounds)
    ]


# -- Scan: h = tanh(h * w + x_t); the scan output is h * x_t -----------------------------------------------------------
def scan_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    h, x, w = names
    body = graph(
        "body",
        ["h_in", "x_t"],
        [
            node("Mul", ["h_in", w], ["hw"]),
            node("Add", ["hw", "x_t"], ["sum"]),
            node("Tanh", ["sum"], ["h_out"]),
            node("Mul", ["h_out", "x_t"], ["y_t"]),
        ],
        ["h_out", "y_t"],
    )
    return [node("Scan", [h, x], outputs, body=body, num_scan_inputs=1, **attributes)]


def scan_reference(h: torch.Tensor, x: torch.Tensor, w: torch.Tensor, **attributes: list[int]) -> tuple[Any, ...]:
    axis, reverse = attributes.get("scan_input_axes", [0])[0], attributes.get("scan_input_directions", [0])[0]
    out_axis, out_reverse = (attributes.get(f"scan_output_{k}", [0])[0] for k in ("axes", "directions"))
    steps = list(x.unbind(axis))
    ys = []
    for step in reversed(steps) if reverse else steps:
        h = torch.tanh(h * w + step)
        ys.append(h * step)
    return h, torch.stack(ys[::-1] if out_reverse else ys, out_axis)


def scan_cases(dtype: torch.dtype) -> list[Case]:
    h, w = rand(3, dtype=dtype), rand(3, dtype=dtype)
    turned = {
        "scan_input_axes": [1],
        "scan_input_directions": [1],
        "scan_output_axes": [-1],
        "scan_output_directions": [1],
    }
    return [
        Case((h, rand(4, 3, dtype=dtype), w), outputs=2),
        Case((h, rand(3, 5, dtype=dtype), w), turned, outputs=2),
    ]


# -- sequences: made from inputs, taken apart into outputs -------------------------------------------------------------
def construct(inputs: Names) -> onnx.NodeProto:
    return node("SequenceConstruct", inputs, ["sequence"])


def stack(sequence: str, output: str, axis: int = 0) -> onnx.NodeProto:
    return node("ConcatFromSequence", [sequence], [output], axis=axis)


def sequence_row(
    name: str,
    make: Callable[[Names, Names, dict[str, Any]], list[onnx.NodeProto]],
    reference: Callable[..., Any],
    cases: Callable[[torch.dtype], list[Case]],
) -> Row:
    return Row(name, reference, cases, differentiable=False, nodes=make)


def two(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return rand(2, 3, dtype=dtype), rand(1, 3, dtype=dtype)


def insert_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    return [
        construct(names[:2]),
        node("SequenceInsert", ["sequence", *names[2:]], ["longer"]),
        stack("longer", outputs[0]),
    ]


def insert_reference(a: Any, b: Any, new: Any, at: torch.Tensor | None = None) -> torch.Tensor:
    elements = [a, b]
    elements.insert(2 if at is None else int(at), new)
    return torch.cat(elements)


def split_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    return [
        node("SplitToSequence", names, ["parts"], **{k: v for k, v in attributes.items() if k != "at"}),
        node("Constant", [], ["at"], value_int=attributes["at"]),
        node("SequenceAt", ["parts", "at"], [outputs[0]]),
        node("SequenceLength", ["parts"], [outputs[1]]),
    ]


def split_reference(
    x: torch.Tensor, sizes: torch.Tensor | None = None, *, at: int, axis: int = 0, keepdims: int = 1
) -> tuple[torch.Tensor, ...]:
    if sizes is None:
        parts = list(x.split(1, axis)) if keepdims else list(x.unbind(axis))
    else:
        parts = list(x.split(sizes.tolist(), axis))
    return parts[at], torch.tensor(len(parts))


def map_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    body = graph("body", ["element", "tensor"], [node("Mul", ["element", "tensor"], ["scaled"])], ["scaled"])
    return [
        construct(names[:2]),
        node("SequenceMap", ["sequence", names[2]], ["mapped"], body=body),
        stack("mapped", outputs[0]),
    ]


def optional_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    return [
        node("Optional", names[:1], ["optional"]),
        node("OptionalHasElement", ["optional"], [outputs[0]]),
        node("OptionalGetElement", ["optional"], [outputs[1]]),
    ]


def optional_cases(dtype: torch.dtype) -> list[Case]:
    return [Case((rand(2, 3, dtype=dtype),), outputs=2)]


def optional_reference(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.tensor(True), x


def empty_nodes(names: Names, outputs: Names, attributes: dict[str, Any]) -> list[onnx.NodeProto]:
    return [
        node("SequenceEmpty", [], ["nothing"], dtype=TensorProto.INT64),
        node("Shape", names, ["shape"]),
        node("SequenceInsert", ["nothing", "shape"], ["one"]),
        stack("one", outputs[0]),
    ]


ROWS = [
    Row("If", if_reference, if_cases, nodes=if_nodes),
    Row("Loop", loop_reference, loop_cases, nodes=loop_nodes, grads=(1, 2), tolerance=2e-2),
    Row("Scan", scan_reference, scan_cases, nodes=scan_nodes),
    sequence_row(
        "SequenceConstruct",
        lambda names, outputs, _: [construct(names), stack("sequence", outputs[0])],
        lambda a, b: torch.cat([a, b]),
        lambda dtype: [Case(two(dtype))],
    ),
    sequence_row(
        "SequenceEmpty",
        empty_nodes,
        lambda x: torch.tensor(x.shape),
        lambda dtype: [Case((rand(2, 3, dtype=dtype),))],
    ),
    sequence_row(
        "SequenceInsert",
        insert_nodes,
        insert_reference,
        lambda dtype: [
            Case((*two(dtype), rand(2, 3, dtype=dtype))),
            *(Case((*two(dtype), rand(2, 3, dtype=dtype), scalar(at))) for at in (0, 1, 2, -2)),
        ],
    ),
    sequence_row(
        "SequenceErase",
        lambda names, outputs, _: [
            construct(names[:2]),
            node("SequenceErase", ["sequence", *names[2:]], ["shorter"]),
            stack("shorter", outputs[0]),
        ],
        lambda a, b, at=None: a if at is None or int(at) in (1, -1) else b,
        lambda dtype: [Case(two(dtype)), *(Case((*two(dtype), scalar(at))) for at in (0, 1, -1))],
    ),
    sequence_row(
        "SequenceAt",
        lambda names, outputs, _: [construct(names[:2]), node("SequenceAt", ["sequence", names[2]], outputs)],
        lambda a, b, at: (a, b)[int(at)],
        lambda dtype: [Case((*two(dtype), scalar(at))) for at in (0, 1, -2)],
    ),
    sequence_row(
        "SequenceLength",
        lambda names, outputs, _: [construct(names), node("SequenceLength", ["sequence"], outputs)],
        lambda a, b: torch.tensor(2),
        lambda dtype: [Case(two(dtype))],
    ),
    sequence_row(
        "SplitToSequence",
        split_nodes,
        split_reference,
        lambda dtype: [
            Case((rand(4, 3, dtype=dtype),), {"at": 2}, outputs=2),
            Case((rand(4, 3, dtype=dtype),), {"at": -1, "axis": 1, "keepdims": 0}, outputs=2),
            Case((rand(5, 3, dtype=dtype), ints(2, 3)), {"at": 1}, outputs=2),
            Case((rand(5, 3, dtype=dtype), ints(2, 0, 3)), {"at": 1}, (1,), outputs=2),
        ],
    ),
    sequence_row(
        "ConcatFromSequence",
        lambda names, outputs, attributes: [
            construct(names),
            node("ConcatFromSequence", ["sequence"], outputs, **attributes),
        ],
        lambda a, b, axis, new_axis=0: torch.stack([a, b], axis) if new_axis else torch.cat([a, b], axis),
        lambda dtype: [
            Case((rand(2, 3, dtype=dtype), rand(2, 1, dtype=dtype)), {"axis": -1}),
            Case((rand(2, 3, dtype=dtype), rand(2, 3, dtype=dtype)), {"axis": -1, "new_axis": 1}),
        ],
    ),
    sequence_row(
        "SequenceMap",
        map_nodes,
        lambda a, b, w: torch.cat([a * w, b * w]),
        lambda dtype: [Case((*two(dtype), rand(3, dtype=dtype)))],
    ),
    sequence_row("Optional", optional_nodes, optional_reference, optional_cases),
    sequence_row("OptionalHasElement", optional_nodes, optional_reference, optional_cases),
    sequence_row("OptionalGetElement", optional_nodes, optional_reference, optional_cases),
]

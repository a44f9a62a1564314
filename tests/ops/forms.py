"""The forms of a sample: the same call with zero-size or size-1 axes, negative axes, and optional inputs absent.

They are made from every row's samples, so that no row has to list them. A form makes sense where the reference takes
it: attributes that name sizes of the sample stop there. Other strides and symbolic sizes are the checkers' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ortmodule import _C

from .table import Case, Row

AXIS_ATTRIBUTES = ("axis", "axes")
# Their axes count in the output, which has another rank than the first input.
AXES_OF_OUTPUT = ("OneHot", "Unsqueeze", "Stack", "ConcatFromSequence", "SequenceMap", "Scan", "SplitToSequence")


def record_of(row: Row) -> dict[str, Any]:
    """The newest record that the row's opset sees."""
    found = [op for op in _C.operators() if (op["domain"], op["name"]) == (row.domain, row.name)]
    return max(
        (op for op in found if row.domain or op["since"] <= row.opset), key=lambda op: op["since"], default=found[0]
    )


def resized(value: torch.Tensor | None, old: int, new: int) -> torch.Tensor | None:
    if value is None:
        return None
    for axis, size in enumerate(value.shape):
        if size == old:
            value = value.narrow(axis, 0, new)
    return value.contiguous()


def with_sizes(case: Case) -> Iterator[tuple[str, Case]]:
    """Each size of the sample in turn becomes 0 and 1, wherever it occurs."""
    sizes = sorted({d for i, v in enumerate(case.inputs) if v is not None and i not in case.constants for d in v.shape})
    for old in sizes:
        for new in (0, 1):
            if old > max(new, 1):
                inputs = tuple(v if i in case.constants else resized(v, old, new) for i, v in enumerate(case.inputs))
                yield f"size {old} as {new}", replace(case, inputs=inputs)


def without_options(row: Row, case: Case) -> Iterator[tuple[str, Case]]:
    record = record_of(row)
    for i, name in enumerate(record["inputs"][: len(case.inputs)]):
        if name in record["optional_inputs"] and case.inputs[i] is not None and row.nodes is None:
            inputs = (*case.inputs[:i], None, *case.inputs[i + 1 :])
            constants = tuple(k for k in case.constants if k != i)
            yield f"without {name}", replace(case, inputs=inputs, constants=constants)


def with_negative_axes(row: Row, case: Case) -> Iterator[tuple[str, Case]]:
    """The same call with every axis counted from the end."""
    first = case.inputs[0] if case.inputs else None
    if first is None or row.nodes is not None or row.name in AXES_OF_OUTPUT:
        return
    rank = first.dim()
    attributes = dict(case.attributes)
    for name in AXIS_ATTRIBUTES:
        value = attributes.get(name)
        if isinstance(value, int) and 0 <= value < rank:
            attributes[name] = value - rank
        elif isinstance(value, list) and value and all(0 <= v < rank for v in value):
            attributes[name] = [v - rank for v in value]
    inputs = list(case.inputs)
    for i, name in enumerate(record_of(row)["inputs"][: len(inputs)]):
        value = inputs[i]
        if name in ("axis", "axes") and value is not None and value.dtype == torch.int64 and value.numel():
            inputs[i] = torch.where((value >= 0) & (value < rank), value - rank, value)
    moved = any(a is not b and not torch.equal(a, b) for a, b in zip(inputs, case.inputs) if a is not None)  # type: ignore[arg-type]
    if moved or attributes != case.attributes:
        yield "negative axes", replace(case, inputs=tuple(inputs), attributes=attributes)

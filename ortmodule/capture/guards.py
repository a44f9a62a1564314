"""When a captured graph holds for a call: the conditions on its input sizes.

The export records them as Python expressions over the inputs; a size that it treated as symbolic may also be limited to
a range (torch's export assumes at least 2). A size that was asked to be dynamic and came out fixed is a condition too.
All of them are compiled into one function, which a call evaluates in microseconds. What the forward asked about the
values of its inputs (branches.py) is asked after them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .sizes import Dim
from .trace.branches import Branch

__all__ = ["compile_check", "range_conditions", "with_branches"]

_SOURCE = "L['tensors']"
# A trace counts the sizes of a gradient that an input has at the time, which no graph reads.
_OF_GRADIENT = re.compile(re.escape(_SOURCE) + r"\[\d+\]\.grad\b")
_SIZE = re.compile(re.escape(_SOURCE) + r"\[(\d+)\]\.size\(\)\[(\d+)\]")
Check = Callable[[Sequence[torch.Tensor]], str | None]


def range_conditions(shapes: dict[int, tuple[Dim, ...]], ranges: dict[Any, Any]) -> list[str]:
    """Conditions for the symbols that are an input's dim.

    Args:
        shapes: dims of each input tensor, by its position.
        ranges: the export's range constraints, symbol to value range.
    """
    limits = {str(symbol): (bounds.lower, bounds.upper) for symbol, bounds in ranges.items()}
    conditions = []
    for i, shape in shapes.items():
        for axis, dim in enumerate(shape):
            bounds = limits.pop(dim, None) if isinstance(dim, str) else None
            if bounds is None:
                continue
            source = f"L['tensors'][{i}].size()[{axis}]"
            low, high = (int(b) if b.is_Integer else None for b in bounds)
            if low:
                conditions.append(f"{source} >= {low}")
            if high is not None and high < 2**62:
                conditions.append(f"{source} <= {high}")
    return conditions


def compile_check(conditions: Sequence[str]) -> Check:
    """One function over the program's input tensors: the text of the first condition that fails, or None."""
    conditions = [one for one in conditions if not _OF_GRADIENT.search(one)]
    sizes = sorted({found.groups() for condition in conditions for found in _SIZE.finditer(condition)})
    lines = ["def check(tensors):", *(f"    d{i}_{axis} = tensors[{i}].shape[{axis}]" for i, axis in sizes)]
    for condition in dict.fromkeys(conditions):
        test = _SIZE.sub(r"d\1_\2", condition).replace(_SOURCE, "tensors")
        lines.append(f"    if not ({test}):\n        return {condition!r}")
    lines.append("    return None")
    scope: dict[str, Any] = {"torch": torch, "math": math}
    exec("\n".join(lines), scope)
    check: Check = scope.pop("check")  # which holds the scope
    return check


def with_branches(check: Check, branches: Sequence[Branch]) -> Check:
    """`check`, then whether each branch goes the way it went when the graph was captured."""
    if not branches:
        return check

    def both(tensors: Sequence[torch.Tensor]) -> str | None:
        failed = check(tensors)
        if failed is not None:
            return failed
        turned = next((b for b in branches if not b.holds(tensors)), None)
        return None if turned is None else f"{turned.line or 'a branch on an input'} is {turned.answer}"

    return both

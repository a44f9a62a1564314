"""What an operator's type and shape rule promised, compared with what a run gave."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch

from .. import _C
from .node_model import ELEMENT_TYPES

__all__ = ["check_declared"]


def check_declared(
    op: str, session: _C.Session, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Types, integer dims and symbols that the inputs bind must hold; other symbols promise nothing.

    Args:
        session: of a `node_model`, compiled with keep_stages.

    Raises:
        AssertionError: the rule promised something else.
    """
    sizes = {f"s{d}": d for v in inputs for d in v.shape}
    graph = onnx.load_from_string(session.stage_model("resolved")).graph
    for k, (value, y) in enumerate(zip(graph.output, outputs, strict=True)):
        kind = value.type.tensor_type
        assert kind.elem_type in (0, ELEMENT_TYPES.get(y.dtype, kind.elem_type)), (
            f"{op}: output {k} was declared to be of element type {kind.elem_type} and is {y.dtype}"
        )
        if not kind.HasField("shape"):
            continue
        dims = [d.dim_param or d.dim_value for d in kind.shape.dim]
        known = [_number(d, sizes) for d in dims]
        assert len(known) == y.dim() and all(k in (None, n) for k, n in zip(known, y.shape)), (
            f"{op}: output {k} was declared as {dims} and is {tuple(y.shape)}"
        )


def _number(dim: int | str, sizes: dict[str, int]) -> int | None:
    if isinstance(dim, int):
        return dim
    functions = {"__builtins__": {}, "Max": max, "Min": min, "Mod": lambda a, b: a % b}
    try:
        return int(eval(dim, functions, dict(sizes)))
    except NameError:
        return None

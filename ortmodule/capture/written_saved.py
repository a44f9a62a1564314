"""Forwards that write a tensor which autograd has saved of it: in eager their backward ends in an error.

A graph's values are what they were when they were read, so that it would give a gradient. Such a forward runs in
PyTorch, where it is as in eager: an error where the gradient is needed, and none where it is not.

Known from the traced forward, which autograd recorded on stand-ins; they count writes as tensors do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import CaptureError

__all__ = ["refuse_written_saved"]


def refuse_written_saved(results: Iterable[Any]) -> None:
    """Raises CaptureError where the history of a result has saved a tensor that was written afterwards."""
    pending = [t.grad_fn for t in results if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen: set[Any] = set(pending)
    names: dict[type, list[str]] = {}
    while pending:
        node = pending.pop()
        if type(node) not in names:
            names[type(node)] = _saved_by(type(node))
        for name in names[type(node)]:
            _refuse_written(node, name)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                pending.append(after)


def _saved_by(kind: type) -> list[str]:
    """The attributes of a node that give what it has saved: checked, unlike the raw ones."""
    every = dir(kind)
    raw = [name.removeprefix("_raw_") for name in every if name.startswith("_raw_saved_")]
    return [f"_{name}" if f"_{name}" in every else name for name in raw]  # a Function's has no underscore


def _refuse_written(node: Any, name: str) -> None:
    try:
        getattr(node, name)
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            operator = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
            raise CaptureError(
                f"the forward writes a tensor that the gradient of {operator} needs, which ends a backward in an error"
            ) from error

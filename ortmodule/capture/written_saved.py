"""What autograd has saved of a forward that writes.

Where it writes a tensor that was saved before, eager's backward ends in an error. A graph's values are what they were
when they were read, so that it would give a gradient. Such a forward runs in PyTorch, where it is as in eager: an error
where the gradient is needed, and none where it is not. What was saved after the last write is told: somebody may write
it before the backward.

Known from the traced forward, which autograd recorded on stand-ins; they count writes as tensors do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import CaptureError
from .torch_private import storage_of

__all__ = ["saved_by", "saved_storages"]

# A normalization's own statistics: its gradient does not read them while it updates them.
_STATISTICS = ("running_mean", "running_var")


def saved_storages(results: Iterable[Any]) -> set[Any]:
    """The memory of what the history of the results has saved.

    Raises:
        CaptureError: something of that was written afterwards.
    """
    pending = [t.grad_fn for t in results if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen: dict[Any, None] = dict.fromkeys(pending)
    while pending:
        for after, _ in pending.pop().next_functions:
            if after is not None and after not in seen:
                seen[after] = None
                pending.append(after)
    return saved_by(seen)


def saved_by(nodes: Iterable[Any]) -> set[Any]:
    """The memory of what these nodes have saved. Raises as `saved_storages` does."""
    names: dict[type, list[str]] = {}
    storages: set[Any] = set()
    for node in nodes:
        if type(node) not in names:
            names[type(node)] = _names_of(type(node))
        for name in names[type(node)]:
            saved = _read(node, name)
            if not name.endswith(_STATISTICS):
                every = saved if isinstance(saved, (tuple, list)) else (saved,)
                storages.update(storage_of(t) for t in every if isinstance(t, torch.Tensor))
    return storages


def _names_of(kind: type) -> list[str]:
    """The attributes of a node that give what it has saved: checked, unlike the raw ones."""
    every = dir(kind)
    raw = [name.removeprefix("_raw_") for name in every if name.startswith("_raw_saved_")]
    return [f"_{name}" if f"_{name}" in every else name for name in raw]  # a Function's has no underscore


def _read(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            operator = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
            raise CaptureError(
                f"the forward writes a tensor that the gradient of {operator} needs, which ends a backward in an error"
            ) from error
        return None

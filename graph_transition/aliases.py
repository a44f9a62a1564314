"""Tensors that share memory with one that the forward writes, without being that tensor: a view and its base, the
`.data` of a parameter. In a graph they are values of their own; a write into one is not seen through the other.

And tensors that want a gradient and are written: with the values autograd changes the history of the caller's tensor,
and keeps it where the write is under no_grad. A graph only writes values.

Not here: arguments that are the same tensor, which have graphs of their own (signature.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..capture import Captured

__all__ = ["written_history", "written_overlap"]


def written_overlap(captured: Captured, leaves: Sequence[Any], module: torch.nn.Module) -> bool:
    """Whether the call writes memory that it reads, or gives back, under another name."""
    if not captured.mutations:
        return False
    others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others += [_tensor(module, name) for name in (*captured.parameters, *captured.buffers)]
    written = []
    for _, kind, target in captured.mutations:
        if kind == "input":
            written.append(leaves[int(target)])
        else:
            written.append(captured.constants[str(target)] if kind == "constant" else _tensor(module, str(target)))
    extents = [(other, *_extent(other)) for other in others]
    for one in written:
        start, end = _extent(one)
        if any(start < high and low < end and one is not other for other, low, high in extents):
            return True
    return False


def written_history(captured: Captured, leaves: Sequence[Any], module: torch.nn.Module) -> str | None:
    """What the call writes into that wants a gradient, in words. A parameter's history is that it has none."""
    if not captured.mutations or not torch.is_grad_enabled():
        return None
    names = dict(captured.user_inputs)
    for _, kind, target in captured.mutations:
        if kind == "input" and leaves[int(target)].requires_grad:
            return f"input '{names.get(int(target))}'"
        if kind == "buffer" and _tensor(module, str(target)).requires_grad:
            return f"buffer '{target}'"
    return None


def _tensor(module: torch.nn.Module, name: str) -> Any:
    owner, _, key = name.rpartition(".")
    return getattr(module.get_submodule(owner), key)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from the first to behind the last element."""
    if tensor.numel() == 0 or tensor.layout != torch.strided:
        return 0, 0
    start, size = tensor.data_ptr(), tensor.element_size()  # addresses of two devices are never the same
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size

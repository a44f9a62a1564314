"""Arguments that are the same tensor: one given twice, or a parameter or buffer of the module that is called.

A forward can ask (`a is b`), and what it writes into one it reads from the other. A trace sees such an argument as the
tensor that it is; a graph holds for calls of its own kind. Not here: tensors that share memory and are not the same
(graph_transition/aliases.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["alias_names", "read_alias", "stand_ins"]


def alias_names(leaves: Sequence[Any], module: torch.nn.Module) -> dict[int, int | str]:
    """By flat leaf index, what a tensor is: an earlier leaf, or the module's tensor of this name."""
    first: dict[int, int | str] = {}
    wanted = {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    for prefix, m in module.named_modules():
        for table in (m._parameters, m._buffers):
            for name, tensor in table.items():
                if id(tensor) in wanted:
                    first.setdefault(id(tensor), f"{prefix}.{name}".lstrip("."))
    found: dict[int, int | str] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), i) != i:
            found[i] = first[id(leaf)]
    return found


def read_alias(module: torch.nn.Module, leaves: Sequence[Any], what: int | str) -> Any:
    """The leaf or the module's tensor, as the trace has it."""
    if isinstance(what, int):
        return leaves[what]
    owner, _, name = what.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def stand_ins(tensors: Sequence[torch.Tensor], repeated: Sequence[bool]) -> tuple[torch.Tensor, ...]:
    """The example tensors, with another for each that is one already: export would take the two for one for ever."""
    return tuple(
        torch.empty_like(tensor).requires_grad_(tensor.requires_grad) if again else tensor
        for tensor, again in zip(tensors, repeated, strict=True)
    )

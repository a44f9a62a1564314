"""What a module's tensors and the flat leaves of a call are called in sentences and as inputs of its graph."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .containers.flattening import lacks_a_field

__all__ = ["first_names", "leaf_names"]


def leaf_names(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A readable name for each flat leaf of a call: the forward's argument name, then the path inside it."""
    try:
        given = [p for p in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        given = []
    positional = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = []
    try:
        paths: list[tuple[Any, Any]] = pytree.tree_flatten_with_path((args, kwargs), lacks_a_field)[0]
    except ValueError:  # a class that is registered without names for its parts
        return [f"leaf{i}" for i in range(len(pytree.tree_leaves((args, kwargs), lacks_a_field)))]
    for path, _ in paths:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path[1:]]
        if path[0].idx == 0:
            index = path[1].idx
            parts[0] = positional[index] if index < len(positional) else f"arg{index}"
        names.append(".".join(parts))
    return names


def first_names(module: torch.nn.Module) -> dict[str, str]:
    """Each FQN of a parameter or buffer and the first FQN of the same tensor."""
    first: dict[int, str] = {}
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in every}

"""What a module's tensors and the flat leaves of a call are called in sentences and as inputs of its graph."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .containers.flattening import flatten_call
from .containers.nodes import paths_of
from .module_tensors import named_tensors

__all__ = ["first_names", "leaf_names"]


def leaf_names(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A readable name for each flat leaf of a call: the forward's argument name, then the path inside it."""
    try:
        given = [p for p in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        given = []
    positional = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    flatten_call(args, kwargs)
    further = [f"arg{i}" for i in range(len(positional), len(args))]
    named = [*zip((*positional, *further), args, strict=False), *kwargs.items()]
    return [".".join((name, *path)) for name, one in named for path in paths_of(one)]


def first_names(module: torch.nn.Module) -> dict[str, str]:
    """Each FQN of a parameter or buffer and the first FQN of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(module, again=True)}

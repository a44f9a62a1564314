"""Calls and results as flat leaves: containers, dataclasses and plain objects that hold tensors are taken apart."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["PLAIN", "flatten_call", "flatten_result", "holds_tensor"]

# Leaves that a result may hold as they are.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the structure of a call; dataclasses that no one registered yet are registered."""
    return _registering((args, kwargs))


def _registering(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    leaves, spec = pytree.tree_flatten(value)
    fresh = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
    if not fresh:
        return leaves, spec
    for cls in fresh:
        torch.export.register_dataclass(cls)
    return _registering(value)


def flatten_result(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """As `_registering`, where plain objects that hold tensors (a key-value cache) are taken apart as well."""
    leaves, spec = _registering(value)
    fresh = {type(leaf) for leaf in leaves if not isinstance(leaf, PLAIN) and _is_plain_object(leaf)}
    if not fresh:
        return leaves, spec
    for cls in fresh:
        pytree.register_pytree_node(cls, _object_parts, functools.partial(_object_from, cls))
    return flatten_result(value)


def _is_plain_object(leaf: Any) -> bool:
    """Whether all that `leaf` holds is in its `__dict__`, so that a copy can be made of changed parts."""
    cls = type(leaf)
    if isinstance(leaf, (torch.Tensor, torch.nn.Module, type)) or cls.__new__ is not object.__new__:
        return False
    slots = any(getattr(base, "__slots__", ()) for base in cls.__mro__)
    return not slots and hasattr(leaf, "__dict__") and holds_tensor(leaf)


def _object_parts(value: Any) -> tuple[list[Any], tuple[str, ...]]:
    return list(vars(value).values()), tuple(vars(value))


def _object_from(cls: type, parts: Any, names: Any) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(zip(names, parts, strict=True))
    return made


def holds_tensor(value: Any, depth: int = 3) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, type):
        return False
    inner = value if isinstance(value, (list, tuple, set)) else [*getattr(value, "__dict__", {}).values()]
    inner = [*inner, *value.values()] if isinstance(value, dict) else inner
    return any(holds_tensor(item, depth - 1) for item in inner)

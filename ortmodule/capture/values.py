"""Python values that a graph has baked in: what they were, and whether they still are.

A list or dict is compared by what it held when it was read, because it may change and stay the same object. Tensors and
whatever else compares to no plain bool are compared by identity.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["same", "snapshot"]


def snapshot(value: Any) -> Any:
    """`value`, with its lists and dicts (of those very types) copied to every depth."""
    if type(value) is list:
        return [snapshot(v) for v in value]
    if type(value) is tuple:
        return tuple(snapshot(v) for v in value)
    if type(value) is dict:
        return {k: snapshot(v) for k, v in value.items()}
    return value


def same(a: Any, b: Any) -> bool:
    """Whether a graph that was made with one of the two holds for the other."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, torch.Tensor):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    try:
        return bool(a == b)
    except Exception:
        return False

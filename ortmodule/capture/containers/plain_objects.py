"""Plain objects among what a call is given and gives back: those of classes that are taken apart into their attributes.

A class is taken apart from the first time on that an object of it holds a tensor, or that a forward was seen to change
one that it was given. A whole number that a forward counts on such an object (how many tokens a cache has seen) is a
leaf of the call as the size of an empty tensor, which a graph may have for any number.

Not here: lists, dicts and dataclasses (flattening.py), what a forward changes (given.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ... import _C

__all__ = [
    "count",
    "counted_leaves",
    "holds_tensor",
    "is_counter",
    "is_plain_object",
    "is_taken_apart",
    "size_of",
    "take_apart",
    "take_changed_apart",
]

_COUNTERS: dict[type, set[str]] = {}  # by class that is taken apart, the attributes that forwards count in


def is_taken_apart(value: Any) -> bool:
    """Whether an object is of a class that is."""
    return type(value) in _COUNTERS


def is_counter(kind: type, name: str) -> bool:
    """Whether forwards count in this attribute of a class that is taken apart."""
    return name in _COUNTERS[kind]


def count(kind: type, name: str) -> bool:
    """From now on a whole number in this attribute is the size of a leaf; whether it was none before."""
    if name in _COUNTERS[kind]:
        return False
    _COUNTERS[kind].add(name)
    _C.count(kind, name)
    return True


def counted_leaves(spec: pytree.TreeSpec, leaves: Sequence[Any], begin: int = 0) -> Iterator[int]:
    """The places of numbers that are sizes, among the leaves of a call."""
    names = _COUNTERS.get(spec.type, ())
    for i in range(spec.num_children):
        child = spec.child(i)
        if not child.is_leaf():
            yield from counted_leaves(child, leaves, begin)
        elif names and spec.context[i] in names and type(leaves[begin]) is int and leaves[begin] >= 0:
            yield begin
        begin += child.num_leaves


def size_of(number: int) -> torch.Tensor:
    """What stands for a number: a tensor of that size, and without an element."""
    return torch.empty((number, 0), dtype=torch.float32, device="cpu")


def take_apart(objects: Iterable[Any]) -> bool:
    """Registers the classes of plain objects, which are taken apart from now on; whether there was one."""
    fresh = {type(one) for one in objects} - pytree.SUPPORTED_NODES.keys()
    for cls in fresh:
        pytree.register_pytree_node(
            cls, _object_parts, functools.partial(_object_from, cls), flatten_with_keys_fn=_named_object_parts
        )
        _COUNTERS[cls] = set()
        _C.take_apart(cls)
    return bool(fresh)


def is_plain_object(leaf: Any) -> bool:
    """Whether `leaf` holds a tensor, and all that it holds in its `__dict__`: a copy can be made of changed parts."""
    return _can_be_copied(leaf) and holds_tensor(leaf)


def _can_be_copied(leaf: Any) -> bool:
    cls = type(leaf)
    if isinstance(leaf, (torch.Tensor, torch.nn.Module, type)) or cls.__new__ is not object.__new__:
        return False
    slots = any(getattr(base, "__slots__", ()) for base in cls.__mro__)
    return not slots and hasattr(leaf, "__dict__") and not hasattr(cls, "__del__")


def take_changed_apart(leaves: Iterable[Any], changed: Iterable[Any]) -> bool:
    """Registers the classes of the plain objects among a call's leaves that lead to what a forward has changed; whether
    there was one. Such a call, taken apart again, has these objects' contents for leaves.
    """
    found: list[Any] = []
    for leaf in leaves:
        _leads_to(leaf, frozenset(map(id, changed)), found)
    return take_apart(found)


def _leads_to(value: Any, sought: frozenset[int], found: list[Any], depth: int = 6) -> bool:
    """Whether `value` is or holds one of `sought`; `found` receives the plain objects on the way."""
    if depth == 0 or isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return False
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    own = [*vars(value).values()] if _can_be_copied(value) else ()
    leads = [_leads_to(one, sought, found, depth - 1) for one in (*inner, *own)]
    if id(value) not in sought and not any(leads):
        return False
    if _can_be_copied(value):
        found.append(value)
    return True


def _object_parts(value: Any) -> tuple[list[Any], tuple[str, ...]]:
    return list(vars(value).values()), tuple(vars(value))


def _named_object_parts(value: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], tuple[str, ...]]:
    return [(pytree.GetAttrKey(name), part) for name, part in vars(value).items()], tuple(vars(value))


def _object_from(cls: type, parts: Any, names: Any) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(zip(names, parts, strict=True))
    return made


def holds_tensor(value: Any, depth: int = 6) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, type):
        return False
    inner = value if isinstance(value, (list, tuple, set)) else [*getattr(value, "__dict__", {}).values()]
    inner = [*inner, *value.values()] if isinstance(value, dict) else inner
    return any(holds_tensor(item, depth - 1) for item in inner)

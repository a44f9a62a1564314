"""Trees of tensors and values: torch's pytree, and besides dataclasses and plain objects, by their attributes.

Torch's own registry would do, but it is the process's: what is registered there, every other user of pytree takes apart
as well (FSDP, DDP), and copies of an object that was passed on as it is would lose what a layer writes to it.

Not here: which plain objects there are (plain_objects.py), which parts of a call are one object (flattening.py).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .plain_objects import attributes_of, is_class_apart, is_plain_object, is_taken_apart, object_with, take_apart

__all__ = ["flatten", "is_node", "leaves_of", "parts_of", "paths_of", "put_together", "unflatten"]

_LEAF = pytree.tree_flatten(0)[1]


def _to_the_end() -> Callable[[Any], bool]:
    return lambda value: False


def is_node(value: Any) -> bool:
    """Whether a value is taken apart."""
    if isinstance(value, torch.Size):  # of which pytree would make a tuple
        return False
    return is_taken_apart(value) or not pytree.tree_is_leaf(value)


def parts_of(value: Any) -> tuple[list[Any], Any]:
    """The parts of a node, and what else is needed to put it together."""
    if is_taken_apart(value):
        attributes = attributes_of(value)
        return list(attributes.values()), tuple(attributes)
    parts, context = pytree.SUPPORTED_NODES[_kind(value)].flatten_fn(value)
    return list(parts), context


def put_together(spec: pytree.TreeSpec, parts: list[Any]) -> Any:
    """The container at the root of `spec`, of these parts."""
    if is_class_apart(spec.type):
        return object_with(spec.type, spec.context, parts)
    return pytree.SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec.context)


def flatten(value: Any, walk: Callable[[], Callable[[Any], bool]] = _to_the_end) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a tree, and its structure. Dataclasses, and plain objects that hold tensors, are taken apart.

    Args:
        value: the tree.
        walk: begins a walk; what it gives is asked of every value on the way, of a container before what it holds,
            whether that is a leaf. After one that has met a new class there is another, as that counts everywhere.
    """
    leaves: list[Any] = []
    fresh: list[Any] = []
    spec = _spec_of(value, walk(), leaves, fresh)
    return flatten(value, walk) if fresh else (leaves, spec)


def _spec_of(value: Any, is_leaf: Callable[[Any], bool], leaves: list[Any], fresh: list[Any]) -> pytree.TreeSpec:
    """The structure; `leaves` and `fresh` receive what it holds, and objects of new classes. No closure that calls
    itself, which would keep the leaves until the next collection.
    """
    if not is_leaf(value):
        if is_plain_object(value) and take_apart([value]):
            fresh.append(value)
        if is_node(value):
            parts, context = parts_of(value)
            return pytree.TreeSpec(_kind(value), context, [_spec_of(part, is_leaf, leaves, fresh) for part in parts])
    leaves.append(value)
    return _LEAF


def unflatten(leaves: Iterable[Any], spec: pytree.TreeSpec) -> Any:
    """The tree of these leaves."""
    return _unflattened(spec, iter(leaves))


def _unflattened(spec: pytree.TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    return put_together(spec, [_unflattened(spec.child(i), leaves) for i in range(spec.num_children)])


def leaves_of(value: Any) -> list[Any]:
    return flatten(value)[0]


def paths_of(value: Any) -> list[tuple[str, ...]]:
    """For each leaf the keys, indices and attributes that lead to it, in a tree that `flatten` has taken apart."""
    if not is_node(value):
        return [()]
    return [(key, *path) for key, part in _named_parts(value) for path in paths_of(part)]


def _named_parts(value: Any) -> list[tuple[str, Any]]:
    parts, context = parts_of(value)
    if is_taken_apart(value):
        return list(zip(context, parts, strict=True))
    with_keys = pytree.SUPPORTED_NODES[_kind(value)].flatten_with_keys_fn
    if with_keys is None:  # a class that somebody has registered without names for its parts
        return [(str(i), part) for i, part in enumerate(parts)]
    return [(_text(key), part) for key, part in with_keys(value)[0]]


def _text(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


def _kind(value: Any) -> Any:
    """The class of a node; of a named tuple what torch's pytree has it under."""
    known = type(value) in pytree.SUPPORTED_NODES or is_taken_apart(value)
    return type(value) if known else collections.namedtuple

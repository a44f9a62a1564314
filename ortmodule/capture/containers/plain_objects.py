"""Plain objects among what a call is given and gives back: those of classes that are taken apart into their attributes.

A class is taken apart if it is a dataclass, and from the first time on that an object of it holds a tensor, or that a
forward was seen to change one that it was given. A whole number that a forward counts on such an object (how many
tokens a cache has seen) is a leaf of the call as the size of an empty tensor, which a graph may have for any number.

Not here: lists, dicts and tuples (nodes.py), what a forward changes (given.py).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ... import _C

__all__ = [
    "attributes_of",
    "count",
    "counted_leaves",
    "holds_tensor",
    "is_counter",
    "is_class_apart",
    "is_plain_object",
    "is_taken_apart",
    "object_with",
    "set_attributes",
    "size_of",
    "take_apart",
    "take_class_apart",
    "take_changed_apart",
]

# What holds something of torch's own, sizes of a trace among them.
_WHOLE = (torch.Tensor, torch.nn.Module, type, torch.SymInt, torch.SymFloat, torch.SymBool)
_HEAP_TYPE = 1 << 9  # in Py_TPFLAGS: a class that a program has made
_COUNTERS: dict[type, set[str]] = {}  # by class that is taken apart, the attributes that forwards count in


def is_taken_apart(value: Any) -> bool:
    """Whether an object is of a class that is."""
    return type(value) in _COUNTERS


def is_class_apart(kind: Any) -> bool:
    return kind in _COUNTERS


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
    """Notes the classes of plain objects, which are taken apart from now on; whether there was a new one. Not those
    that somebody has registered with torch's pytree.
    """
    fresh = {type(one) for one in objects} - _COUNTERS.keys()
    return any([take_class_apart(cls) for cls in fresh])


def take_class_apart(cls: type) -> bool:
    """Notes a class, if its objects can be made again of their attributes; whether they can."""
    if cls not in _COUNTERS:
        if not _is_plain_class(cls):
            return False
        _COUNTERS[cls] = set()
        if not _slots(cls):
            _C.take_apart(cls)
    return True


def is_plain_object(leaf: Any) -> bool:
    """Whether `leaf` is a dataclass's or holds a tensor, and can be made again of its attributes."""
    if type(leaf) in _COUNTERS:
        return True
    return _is_plain_class(type(leaf)) and (dataclasses.is_dataclass(leaf) or holds_tensor(leaf))


def attributes_of(value: Any) -> dict[str, Any]:
    """What a plain object holds."""
    found = dict(getattr(value, "__dict__", ()))
    for name in _slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def object_with(cls: type, names: Iterable[str], parts: Iterable[Any]) -> Any:
    """A plain object of these attributes."""
    made: Any = object.__new__(cls)
    set_attributes(made, dict(zip(names, parts, strict=True)))
    return made


def set_attributes(value: Any, attributes: Mapping[str, Any], removed: Iterable[str] = ()) -> None:
    """Sets attributes of a plain object, past what its class does when one is set."""
    for name in removed:
        object.__delattr__(value, name)
    for name, part in attributes.items():
        object.__setattr__(value, name, part)


def _is_plain_class(cls: type) -> bool:
    if issubclass(cls, _WHOLE) or cls.__new__ is not object.__new__:
        return False
    return cls not in pytree.SUPPORTED_NODES and cls.__flags__ & _HEAP_TYPE != 0 and not hasattr(cls, "__del__")


def _slots(cls: type) -> tuple[str, ...]:
    """The attributes that the classes give a place of their own."""
    return tuple(
        name
        for base in cls.__mro__
        if base.__flags__ & _HEAP_TYPE
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    )


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
    own = attributes_of(value).values() if _is_plain_class(type(value)) else ()
    leads = [_leads_to(one, sought, found, depth - 1) for one in (*inner, *own)]
    if id(value) not in sought and not any(leads):
        return False
    if _is_plain_class(type(value)):
        found.append(value)
    return True


def holds_tensor(value: Any, depth: int = 6) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, type):
        return False
    inner = value if isinstance(value, (list, tuple, set)) else attributes_of(value).values()
    inner = [*inner, *value.values()] if isinstance(value, dict) else inner
    return any(holds_tensor(item, depth - 1) for item in inner)

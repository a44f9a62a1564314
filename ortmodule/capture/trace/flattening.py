"""Calls and results as flat leaves: containers, dataclasses and plain objects that hold tensors are taken apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import CaptureError

__all__ = [
    "PLAIN",
    "CallShape",
    "FlatCall",
    "ResultWalk",
    "flatten_call",
    "flatten_result",
    "holds_tensor",
    "lacks_a_field",
]

# Leaves that a result may hold as they are.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


@dataclasses.dataclass(frozen=True)
class CallShape:
    """How the leaves of a call stand in its (args, kwargs).

    Attributes:
        spec: the pytree spec of (args, kwargs).
        same: for each container, one before what it holds, the number of the first that is the same object.
    """

    spec: pytree.TreeSpec
    same: tuple[int, ...]

    def filled(self, leaves: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The (args, kwargs) with these leaves. A container that stood in two places does again."""
        made: list[Any] = []
        args, kwargs = self._filled(self.spec, iter(leaves), made)
        return args, kwargs

    def _filled(self, spec: pytree.TreeSpec, leaves: Iterator[Any], made: list[Any]) -> Any:
        if spec.is_leaf():
            return next(leaves)
        number = len(made)
        made.append(None)
        children = [self._filled(spec.child(i), leaves, made) for i in range(spec.num_children)]
        first = self.same[number]
        made[number] = (
            pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context) if first == number else made[first]
        )
        return made[number]


@dataclasses.dataclass(frozen=True)
class FlatCall:
    """A call taken apart.

    Attributes:
        leaves: its flat leaves.
        shape: what they stand in.
        given: the tuples, lists, dicts and objects that the caller gives, each before what it holds.
    """

    leaves: list[Any]
    shape: CallShape
    given: list[Any]


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatCall:
    """Takes a call apart; dataclasses that no one registered yet are registered.

    Raises:
        CaptureError: a container holds itself.
    """
    containers: list[Any] = []
    is_leaf = functools.partial(_is_kept_whole, containers)
    try:
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf)
        while _registered(leaves):
            containers.clear()
            leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf)
        numbers: dict[int, int] = {}
        same = tuple(numbers.setdefault(id(value), number) for number, value in enumerate(containers))
        of_kwargs = 1 + _containers_in(spec.child(0))
        given = [value for number, value in enumerate(containers) if number not in (0, 1, of_kwargs)]
    except RecursionError:
        raise CaptureError("an argument is a list, a dict or an object that holds itself") from None
    finally:
        containers.clear()  # pytree keeps what it is given until the next collection
    return FlatCall(leaves, CallShape(spec, same), given)


def _containers_in(spec: pytree.TreeSpec) -> int:
    """How many containers there are in a spec, itself included."""
    return 0 if spec.is_leaf() else 1 + sum(_containers_in(spec.child(i)) for i in range(spec.num_children))


def _is_kept_whole(containers: list[Any], value: Any) -> bool:
    """Whether an argument that pytree could take apart is a leaf; `containers` receives what is none."""
    if pytree.tree_is_leaf(value):
        return False
    if isinstance(value, torch.Size) or lacks_a_field(value):  # the first would become a tuple
        return True
    containers.append(value)
    return False


class ResultWalk:
    """Which containers of a result are taken apart: not those that were there before the call, and none twice.

    Containers are numbered in the order in which they are met, in one walk over all that a forward leaves.

    Args:
        is_kept: whether a value is an object that was there before.
    """

    def __init__(self, is_kept: Callable[[Any], bool] = lambda value: False) -> None:
        self.is_kept = is_kept
        self._count = 0
        self._numbers: dict[int, int] = {}

    def copy(self) -> ResultWalk:
        walk = ResultWalk(self.is_kept)
        walk._count, walk._numbers = self._count, dict(self._numbers)
        return walk

    def take(self, walk: ResultWalk) -> None:
        """Goes on where the other has ended."""
        self._count, self._numbers = walk._count, walk._numbers

    def stops_at(self, value: Any) -> bool:
        """Called with each value on the way, a container before what it holds."""
        number, self._count = self._count, self._count + 1
        if self.is_kept(value) or isinstance(value, torch.Size):  # which torch would make a tuple of
            return True
        if isinstance(value, tuple) or pytree.tree_is_leaf(value):
            return False
        if lacks_a_field(value):
            return True
        return self._numbers.setdefault(id(value), number) != number

    def number(self, value: Any) -> int | None:
        """The number of a container that was taken apart before."""
        return self._numbers.get(id(value))


def lacks_a_field(value: Any) -> bool:
    """Whether `value` is of a dataclass and has lost a field, which taking it apart would ask for."""
    return dataclasses.is_dataclass(value) and not all(hasattr(value, f.name) for f in dataclasses.fields(value))


def _registering(value: Any, walk: ResultWalk) -> tuple[list[Any], pytree.TreeSpec]:
    going = walk.copy()
    leaves, spec = pytree.tree_flatten(value, going.stops_at)
    if _registered(leaf for leaf in leaves if not walk.is_kept(leaf)):
        return _registering(value, walk)
    walk.take(going)
    return leaves, spec


def _registered(leaves: Iterable[Any]) -> bool:
    """Registers the dataclasses among leaves that no one registered yet; whether there was one."""
    fresh = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
    fresh -= pytree.SUPPORTED_NODES.keys()
    for cls in fresh:
        torch.export.register_dataclass(cls)
    return bool(fresh)


def flatten_result(value: Any, walk: ResultWalk) -> tuple[list[Any], pytree.TreeSpec]:
    """As `_registering`, where plain objects that hold tensors (a key-value cache) are taken apart as well."""
    going = walk.copy()
    leaves, spec = _registering(value, going)
    own = [leaf for leaf in leaves if not isinstance(leaf, PLAIN) and not walk.is_kept(leaf)]
    fresh = {type(leaf) for leaf in own if _is_plain_object(leaf)} - pytree.SUPPORTED_NODES.keys()
    if not fresh:
        walk.take(going)
        return leaves, spec
    for cls in fresh:
        pytree.register_pytree_node(cls, _object_parts, functools.partial(_object_from, cls))
    return flatten_result(value, walk)


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


def holds_tensor(value: Any, depth: int = 6) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, type):
        return False
    inner = value if isinstance(value, (list, tuple, set)) else [*getattr(value, "__dict__", {}).values()]
    inner = [*inner, *value.values()] if isinstance(value, dict) else inner
    return any(holds_tensor(item, depth - 1) for item in inner)

"""Calls and results as flat leaves: containers, dataclasses and plain objects that hold tensors are taken apart."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ... import _C
from ...errors import CaptureError
from .nodes import flatten, is_node, parts_of, put_together
from .plain_objects import counted_leaves, is_plain_object, size_of

__all__ = [
    "PLAIN",
    "CallShape",
    "FlatCall",
    "ResultWalk",
    "flatten_call",
    "flatten_result",
]

_MAPPINGS: set[type] = set()  # classes of ordered dicts that native patterns take apart
# Leaves that a result may hold as they are.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


@dataclasses.dataclass(frozen=True)
class CallShape:
    """How the leaves of a call stand in its (args, kwargs).

    Attributes:
        spec: the pytree spec of (args, kwargs).
        same: for each container, one before what it holds, the number of the first that is the same object.
        counted: places of the leaves that stand for numbers, by their sizes (plain_objects.py).
    """

    spec: pytree.TreeSpec
    same: tuple[int, ...]
    counted: frozenset[int] = frozenset()

    def filled(self, leaves: Iterable[Any]) -> FilledCall:
        """The call with these leaves. A container that stood in two places does again."""
        made: list[Any] = []
        values = (leaf.shape[0] if i in self.counted else leaf for i, leaf in enumerate(leaves))
        args, kwargs = self._filled(self.spec, values, made)
        return FilledCall(args, kwargs, _given(self.spec, made))

    def _filled(self, spec: pytree.TreeSpec, leaves: Iterator[Any], made: list[Any]) -> Any:
        if spec.is_leaf():
            return next(leaves)
        number = len(made)
        made.append(None)
        children = [self._filled(spec.child(i), leaves, made) for i in range(spec.num_children)]
        first = self.same[number]
        made[number] = put_together(spec, children) if first == number else made[first]
        return made[number]


@dataclasses.dataclass(frozen=True)
class FilledCall:
    """A call put together again: what is passed, and the containers in it as `FlatCall.given` has them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Any]


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
    """Takes a call apart. Raises CaptureError for a container that holds itself."""
    containers: list[Any] = []

    def begin() -> Callable[[Any], bool]:
        containers.clear()
        return note

    def note(value: Any) -> bool:
        if is_node(value) or is_plain_object(value):
            containers.append(value)
        return False

    try:
        leaves, spec = flatten((args, kwargs), begin)
    except RecursionError:
        raise CaptureError("an argument is a list, a dict or an object that holds itself") from None
    numbers: dict[int, int] = {}
    same = tuple(numbers.setdefault(id(value), number) for number, value in enumerate(containers))
    given = _given(spec, containers)
    _learn_mappings(given)
    counted = frozenset(counted_leaves(spec, leaves))
    leaves = [size_of(leaf) if i in counted else leaf for i, leaf in enumerate(leaves)]
    return FlatCall(leaves, CallShape(spec, same, counted), given)


def _given(spec: pytree.TreeSpec, containers: list[Any]) -> list[Any]:
    """Of all containers of a call those that its caller has made."""
    of_call = (0, 1, 1 + _containers_in(spec.child(0)))
    return [value for number, value in enumerate(containers) if number not in of_call]


def _learn_mappings(given: list[Any]) -> None:
    """Has native patterns take ordered dicts apart that torch's pytree has by their values: results of other models."""
    for value in given:
        kind = type(value)
        if isinstance(value, collections.OrderedDict) and kind not in _MAPPINGS:
            parts, _ = parts_of(value)
            if [*map(id, parts)] == [*map(id, collections.OrderedDict.values(value))]:
                _MAPPINGS.add(kind)
                _C.take_apart(kind)


def _containers_in(spec: pytree.TreeSpec) -> int:
    """How many containers there are in a spec, itself included."""
    return 0 if spec.is_leaf() else 1 + sum(_containers_in(spec.child(i)) for i in range(spec.num_children))


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

    def next_number(self) -> int:
        """Of what is met next."""
        self._count += 1
        return self._count - 1

    def stops_at(self, value: Any) -> bool:
        """Called with each value on the way, a container before what it holds."""
        number = self.next_number()
        if self.is_kept(value):
            return True
        if isinstance(value, tuple) or not (is_node(value) or is_plain_object(value)):
            return False
        return self._numbers.setdefault(id(value), number) != number

    def number(self, value: Any) -> int | None:
        """The number of a container that was taken apart before."""
        return self._numbers.get(id(value))


def flatten_result(value: Any, walk: ResultWalk) -> tuple[list[Any], pytree.TreeSpec]:
    """Takes a result apart; `walk` goes on behind it. Raises CaptureError for a container that holds itself."""
    going = walk
    before = walk.copy()

    def begin() -> Callable[[Any], bool]:
        nonlocal going
        going = walk.copy()
        return going.stops_at

    leaves, spec = flatten(value, begin)
    walk.take(going)
    if _holds_itself(spec, iter(leaves), walk, before, []):
        raise CaptureError("the module returns a list, a dict or an object that holds itself")
    return leaves, spec


def _holds_itself(
    spec: pytree.TreeSpec, leaves: Iterator[Any], walk: ResultWalk, at: ResultWalk, within: list[int]
) -> bool:
    """Whether a leaf is one of the containers that it is in. `walk` has seen all; `at` counts again."""
    number = at.next_number()
    if spec.is_leaf():
        return walk.number(next(leaves)) in within
    return any([_holds_itself(spec.child(i), leaves, walk, at, [*within, number]) for i in range(spec.num_children)])

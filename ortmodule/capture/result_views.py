"""Results that are views of the caller's tensors or of other results.

In eager such a result shares memory and history with what it is a view of: what is written into one is seen in the
other, and autograd knows. A graph's outputs are values of their own. Here the operators that lead from the base to the
view are found, so that the call can apply them to the base itself, behind the graph. A caller's tensor that the forward
writes has its new values by then, and a view of it, whenever made, shows them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .rewrite.regions import MADE_WITHOUT_GRADIENT, WITHOUT_HISTORY, is_write
from .torch_private import storage_of

__all__ = ["Symbol", "ViewStep", "replayed", "symbols_of", "view_steps"]

_ATEN = torch.ops.aten
# Operators that read of their second argument its size.
_TO_THE_SIZE_OF = {
    _ATEN.expand_as.default: _ATEN.expand.default,
    _ATEN.view_as.default: _ATEN.reshape.default,
    _ATEN.reshape_as.default: _ATEN.reshape.default,
}
# Operators of a list of tensors, each of which leads to one result, and what that result is of its tensor alone.
_ONE_BY_ONE = {_ATEN.broadcast_tensors.default: _ATEN.expand_as.default}


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A size that is another at each call, by the name of its symbol."""

    name: str


@dataclasses.dataclass(frozen=True)
class ViewStep:
    """One operator: called with the tensor before it and these arguments; `part` where it gives several tensors."""

    operator: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None


def view_steps(
    node: Node, dim: Callable[[torch.SymInt], int | str], is_given: Callable[[Node], bool]
) -> tuple[Node, list[ViewStep]]:
    """What `node` is a view of, and how; no steps where that is itself, or where the way cannot be gone again.

    Args:
        node: a traced tensor.
        dim: an integer, or the text, of a symbolic size.
        is_given: whether a node is a tensor of the caller's, as it was given or with its new values.
    """
    steps: list[ViewStep] = []
    at = node
    while not is_given(at):
        if _returns_what_it_writes(at):
            at = at.args[0]  # type: ignore[assignment]
            continue
        part = None
        maker = at
        if at.target is getitem and isinstance(at.args[0], Node):
            maker, part = at.args[0], at.args[1]
        base = _source(maker, part)  # type: ignore[arg-type]
        if base is None or not _shares(at, base):
            break
        step = _step(at, maker, part, dim)  # type: ignore[arg-type]
        if step is None:
            break
        steps.insert(0, step)
        at = base
    return at, steps


def replayed(steps: Sequence[ViewStep], base: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
    """The view of `base`."""

    def size(value: Any) -> Any:
        return symbols[value.name] if isinstance(value, Symbol) else value

    tensor = base
    for step in steps:
        args, kwargs = pytree.tree_map(size, (step.args, step.kwargs))
        result = step.operator(tensor, *args, **kwargs)
        tensor = result if step.part is None else result[step.part]
    return tensor


def symbols_of(steps: Sequence[ViewStep]) -> set[str]:
    """The symbols among the steps' arguments."""
    leaves = pytree.tree_leaves([(step.args, step.kwargs) for step in steps])
    return {leaf.name for leaf in leaves if isinstance(leaf, Symbol)}


def _returns_what_it_writes(node: Node) -> bool:
    """Whether it is an in-place operator, whose result is its first argument."""
    return is_write(node) and node.target._schema.name.endswith("_") and _shares(node, node.args[0])  # type: ignore[union-attr]


class _NoStep(Exception):
    """The operator is no view, or has arguments that are known to the run only."""


def _source(maker: Node, part: int | None) -> Node | None:
    """The tensor whose memory an operator's result may have: its first argument, of a list the one in its place."""
    target = maker.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not maker.args:
        return None
    if not {MADE_WITHOUT_GRADIENT, WITHOUT_HISTORY}.isdisjoint(maker.meta):
        return None
    first = maker.args[0]
    if part is not None and target in _ONE_BY_ONE:
        first = first[part]  # type: ignore[index]
    return first if isinstance(first, Node) else None


def _step(at: Node, maker: Node, part: int | None, dim: Callable[[torch.SymInt], int | str]) -> ViewStep | None:
    target: Any = maker.target
    args: Any = maker.args[1:]
    kwargs: Any = maker.kwargs
    if target in _ONE_BY_ONE:
        target, part = _ONE_BY_ONE[target], None
    if target in _TO_THE_SIZE_OF:
        target, args, kwargs = _TO_THE_SIZE_OF[target], (tuple(at.meta["val"].shape),), {}
    try:
        args = torch.fx.node.map_aggregate(args, functools.partial(_size, dim))
        kwargs = torch.fx.node.map_aggregate(kwargs, functools.partial(_size, dim))
    except _NoStep:
        return None
    if target is _ATEN.view.default:  # the base may lie in another way than eager's
        target = _ATEN.reshape.default
    return ViewStep(target, tuple(args), dict(kwargs), part)


def _size(dim: Callable[[torch.SymInt], int | str], argument: Any) -> Any:
    if not isinstance(argument, Node | torch.SymInt):
        return argument
    value = argument.meta.get("val") if isinstance(argument, Node) else argument
    if isinstance(value, int):
        return value
    size = dim(value) if isinstance(value, torch.SymInt) else None
    if isinstance(size, int):
        return size
    if size is None or not size.isidentifier():
        raise _NoStep
    return Symbol(size)


def _shares(view: Node, base: Any) -> bool:
    one, other = view.meta.get("val"), base.meta.get("val") if isinstance(base, Node) else None
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return storage_of(one) == storage_of(other)

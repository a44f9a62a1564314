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
    written = False
    while not is_given(at):
        if _returns_what_it_writes(at):
            at, written = at.args[0], True  # type: ignore[assignment]
            continue
        part = None
        maker = at
        if at.target is getitem and isinstance(at.args[0], Node):
            maker, part = at.args[0], at.args[1]
        step = None if maker.op != "call_function" else _step(maker, part, dim)  # type: ignore[arg-type]
        if step is None or not (_shares(at, maker.args[0]) or _gives_its_argument(maker)):
            break
        written = written or any(is_write(user) for one in (at, maker) for user in one.users)
        steps.insert(0, step)
        at = maker.args[0]  # type: ignore[assignment]
    written = written or any(is_write(user) for user in at.users) or is_write(at)
    return (node, []) if written and not is_given(at) else (at, steps)


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


def _step(node: Node, part: int | None, dim: Callable[[torch.SymInt], int | str]) -> ViewStep | None:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not node.args:
        return None
    if not isinstance(node.args[0], Node) or not {MADE_WITHOUT_GRADIENT, WITHOUT_HISTORY}.isdisjoint(node.meta):
        return None
    try:
        args = torch.fx.node.map_arg(node.args[1:], functools.partial(_size, dim))  # type: ignore[arg-type]
        kwargs = torch.fx.node.map_arg(node.kwargs, functools.partial(_size, dim))  # type: ignore[arg-type]
    except _NoStep:
        return None
    if target is torch.ops.aten.view.default:  # the base may lie in another way than eager's
        target = torch.ops.aten.reshape.default
    return ViewStep(target, tuple(args), dict(kwargs), part)


def _size(dim: Callable[[torch.SymInt], int | str], node: Node) -> int | Symbol:
    value = node.meta.get("val")
    if isinstance(value, int):
        return value
    size = dim(value) if isinstance(value, torch.SymInt) else None
    if isinstance(size, int):
        return size
    if size is None or not size.isidentifier():
        raise _NoStep
    return Symbol(size)


def _gives_its_argument(node: Node) -> bool:
    """Whether it is a dropout that drops nothing, whose result is its argument itself."""
    schema = node.target._schema  # type: ignore[union-attr]
    if not schema.name.endswith("dropout") or len(node.args) != 3:
        return False
    nothing = bool(node.args[1] == 0) and schema.name != "aten::native_dropout"  # which multiplies all the same
    return node.args[2] is False or nothing


def _shares(view: Node, base: Any) -> bool:
    one, other = view.meta.get("val"), base.meta.get("val") if isinstance(base, Node) else None
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return storage_of(one) == storage_of(other)

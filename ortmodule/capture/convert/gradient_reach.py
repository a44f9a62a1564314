"""Which of an ATen node's inputs its derivative reaches, as PyTorch has it.

An operator may read a floating tensor that no gradient goes to (the target of `cosine_embedding_loss`); its `.grad`
stays None in eager, which differs from zeros for an optimizer. The operator is called on tensors without memory, and
the history of its results is walked. Not here: the node itself (aten_node.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..trace.state.random_states import same_random_states

__all__ = ["unreached_inputs"]

_OVERWRITES = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.Tensor)


def unreached_inputs(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], count: int
) -> list[int]:
    """Positions, among the tensors of a call, of floating ones that no gradient reaches; none where it is not known.

    Args:
        target: the operator, not one that writes.
        args, kwargs: its arguments in the traced graph, with fx nodes for tensors and symbolic sizes.
        count: how many of them are tensors of the node.
    """
    if target.namespace != "aten":
        return []
    if _makes_anew(target):
        return list(range(count))
    ordered = {a.name: kwargs[a.name] for a in target._schema.arguments if a.name in kwargs}
    with torch.inference_mode(False), torch.enable_grad(), same_random_states():
        leaves, spec = pytree.tree_flatten((tuple(args), ordered))
        try:
            given = [_stand_in(leaf) for leaf in leaves]
            real_args, real_kwargs = pytree.tree_unflatten(given, spec)
            results = pytree.tree_leaves(target(*real_args, **real_kwargs))
        except Exception:  # no kernel without memory, a size that only the run knows, ...
            return []
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        if len(tensors) != count:
            return []
        reached = _leaves_of([r for r in results if isinstance(r, torch.Tensor) and r.requires_grad])
        return [i for i, x in enumerate(tensors) if x.requires_grad and id(x) not in reached]


def _makes_anew(target: torch._ops.OpOverload) -> bool:
    """Whether nothing of a tensor goes into the result: `randint_like`, which torch runs below autograd, and what
    `x.bernoulli_(p)` is in a trace.
    """
    return target in _OVERWRITES or target._schema.name.endswith("_like")


def _stand_in(leaf: Any) -> Any:
    value = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
    if isinstance(value, torch.Tensor):
        shape = [_size(d) for d in value.shape]
        differentiable = value.dtype.is_floating_point or value.dtype.is_complex
        return torch.empty(shape, dtype=value.dtype, device="meta", requires_grad=differentiable)
    return _size(value) if isinstance(value, torch.SymInt) else value


def _size(value: Any) -> int:
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def _leaves_of(results: Sequence[torch.Tensor]) -> set[int]:
    """Identities of the tensors at which the histories of `results` end; of a result that is one, its own."""
    pending = [result.grad_fn for result in results]
    seen: set[Any] = set()
    found = {id(result) for result in results}
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        pending.extend(following for following, _ in node.next_functions)
    return found

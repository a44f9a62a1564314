"""Autograd's history of a block that was repeated: one node, which knows what the first one's run had recorded.

Who walks a history asks here for its steps. What lies behind a `RepeatedBlock` is walked as if the block had run: the
first one's nodes in the place of its own, from its results to what it was given.

Not here: why histories are walked (hook_order.py, ../../result_order.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ....errors import CaptureError

__all__ = ["History", "RepeatedBlock", "Step", "followed_by", "order_of", "step_behind"]

_Edge = tuple[Any, int]


class _Inner(NamedTuple):
    """A node of the first block's history, in the place of that of another one."""

    block: Any
    node: Any


Step = Any  # a node of autograd's, or an _Inner


class History:
    """What autograd has recorded of a block's run, between its results and what it was given.

    Args:
        results: the tensors that it returned.
        given: the tensors that it may have read.
        begun: autograd's number of the first node that may be the run's.

    Attributes:
        whole: whether every way ends at something given.
        nodes: the run's.
        results: by result, the edge at which its history begins; None: it has none.
    """

    def __init__(self, results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], begun: int) -> None:
        self._ends: dict[_Edge, int] = {}
        leaves: dict[int, int] = {}
        for i, tensor in enumerate(given):
            if tensor.grad_fn is not None:
                self._ends.setdefault((tensor.grad_fn, tensor.output_nr), i)
            elif tensor.requires_grad:
                leaves.setdefault(id(tensor), i)
        self.results = [(t.grad_fn, t.output_nr) if t.grad_fn is not None else None for t in results]
        self.whole = True
        self._after: dict[Any, list[_Edge]] = {}
        pending = [edge[0] for edge in self.results if edge is not None and edge not in self._ends]
        while pending:
            node = pending.pop()
            if node in self._after:
                continue
            self._after[node] = [(after, number) for after, number in node.next_functions if after is not None]
            self.whole = self.whole and node._sequence_nr() >= begun
            for after, number in self._after[node]:
                if type(after).__name__ == "AccumulateGrad":
                    if id(after.variable) in leaves:
                        self._ends[after, number] = leaves[id(after.variable)]
                    else:
                        self.whole = False
                elif (after, number) not in self._ends:
                    pending.append(after)
            if not self.whole:
                return

    @property
    def nodes(self) -> list[Any]:
        return list(self._after)

    def after(self, block: Any, node: Any) -> list[tuple[Step, int]]:
        """The steps that follow `node` where it stands for one of `block`'s."""
        return [edge for after in self._after[node] for edge in self.resolved(block, after)]

    def resolved(self, block: Any, edge: _Edge) -> list[tuple[Step, int]]:
        """Where an edge of the first block's history leads in that of `block`."""
        if edge not in self._ends:
            return [(_Inner(block, edge[0]), edge[1])]
        node, number = block.next_functions[self._ends[edge]]
        return [] if node is None else _steps(node, number)


class RepeatedBlock(torch.autograd.Function):
    """Stands for the history of a block that was not run."""

    @staticmethod
    def forward(
        ctx: Any, history: History, results: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.history = history
        kept = {id(tensor): tensor for tensor in saved}
        ctx.save_for_backward(*kept.values())
        ctx.mark_non_differentiable(*(t for t, edge in zip(results, history.results, strict=True) if edge is None))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CaptureError("a gradient is computed through a block of a trace that was not run")

    @classmethod
    def applied(cls, history: History, results: Any, saved: Any, given: Any) -> tuple[torch.Tensor, ...]:
        """The results, with this history."""
        apply: Any = super(torch.autograd.Function, cls).apply  # type: ignore[misc]  # past what a capture replaces
        return tuple(apply(history, results, saved, *given))


def _is_repeated(node: Any) -> bool:
    return getattr(type(node), "_forward_cls", None) is RepeatedBlock


def _steps(node: Any, number: int) -> list[tuple[Step, int]]:
    if not _is_repeated(node):
        return [(node, number)]
    begins = node.history.results[number]
    return [] if begins is None else node.history.resolved(node, begins)


def step_behind(tensor: torch.Tensor) -> tuple[Step, int] | None:
    """The step at which a tensor's history begins, and as the how many-th of its results; None: it has no history."""
    steps = [] if tensor.grad_fn is None else _steps(tensor.grad_fn, tensor.output_nr)
    return steps[0] if steps else None


def followed_by(step: Step) -> list[tuple[Step, int]]:
    """The steps that a backward goes on to, each with the number of the result whose gradient it is given."""
    if isinstance(step, _Inner):
        return step.block.history.after(step.block, step.node)
    return [edge for after, number in step.next_functions if after is not None for edge in _steps(after, number)]


def order_of(step: Step) -> tuple[int, int]:
    """Greater for what autograd has recorded later; the greatest for leaves."""
    if isinstance(step, _Inner):
        return step.block._sequence_nr(), step.node._sequence_nr()
    return step._sequence_nr(), 0

"""A batch in micro-batches: the calls of the model, and the targets of the loss.

Not here: who runs them (step.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ortmodule.capture.containers.nodes import flatten, unflatten
from ortmodule.errors import InvalidArgumentError

__all__ = ["MicroBatches"]


class MicroBatches:
    """Args:
    inputs: one tensor, a tuple of arguments, or a mapping of named ones.
    targets: a tree of tensors, or None.
    count: how many.

    Attributes:
        calls: (args, kwargs) of each.

    Raises:
        InvalidArgumentError: the tensors' first axes cannot be divided, or differ.
    """

    def __init__(self, inputs: Any, targets: Any, count: int) -> None:
        self._rows: int | None = None
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)
        elif not isinstance(inputs, tuple):
            inputs = (inputs,)
        divided = self._divide(inputs, "inputs", count)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), one) if isinstance(one, dict) else (one, {}) for one in divided
        ]
        self._targets = self._divide(targets, "targets", count)

    def targets(self, micro: int) -> Any:
        return self._targets[micro]

    def _divide(self, tree: Any, name: str, count: int) -> list[Any]:
        leaves, spec = flatten(tree)
        columns: list[list[Any]] = []
        seen: dict[int, Any] = {}
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
                columns.append([leaf] * count)
                continue
            rows = leaf.shape[0]
            self._rows = rows if self._rows is None else self._rows
            if rows != self._rows:
                raise InvalidArgumentError(f"{name} have {rows} rows in one tensor and {self._rows} in another")
            if rows % count or not rows:
                raise InvalidArgumentError(f"{name} of {rows} rows cannot be divided into {count} micro-batches")
            seen.setdefault(id(leaf), leaf.detach().chunk(count))  # a tensor that is given twice stays one
            columns.append(list(seen[id(leaf)]))
        return [unflatten([column[i] for column in columns], spec) for i in range(count)]

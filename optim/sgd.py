"""SGD with momentum, dampening, Nesterov's form and weight decay, in one native call a step.

Not here: the rule (csrc/kernels/optimizer/sgd.cpp), the call (native.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ortmodule.optim.native import Group, NativeStep, Row, number


class SGD(NativeStep, torch.optim.SGD):
    """torch.optim.SGD, with its arguments, states, state dicts, errors and bits.

    Formula (Sutskever et al., On the importance of initialization and momentum in deep learning, 2013): with g the
    gradient plus `weight_decay` w, b <- `momentum` b + (1 - `dampening`) g, and w <- w - `lr` b, or with `nesterov`
    w - `lr` (g + `momentum` b). The first b is g. Sparse gradients are torch's to apply.
    """

    _rule = "sgd"
    _takes_sparse = True

    def _settings(self, group: Group) -> dict[str, float]:
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        return {name: number(group[name]) for name in names}

    def _serves(self, group: Group) -> bool:
        own = [group[name] for name in ("lr", "weight_decay") if isinstance(group[name], Tensor)]
        return not any(value.requires_grad or not value.is_cpu for value in own)

    def _needs_no_answer(self, groups: list[Group], *numbers: Any) -> bool:
        """A momentum that begins is there after the step, or is not."""
        used = [p for group in groups if group["momentum"] for p in group["params"] if p.grad is not None]
        begun = all(self.state[p].get("momentum_buffer") is not None for p in used)
        return begun and super()._needs_no_answer(groups, *numbers)

    def _row(self, group: Group, p: Tensor, gradient: Tensor, copy: Tensor | None) -> Row:
        if not group["momentum"]:
            return p, gradient, None, copy
        buffer = self.state[p].get("momentum_buffer")
        return p, gradient, None, copy, buffer

    def _split(self, numbers: dict[str, float], rows: list[Row]) -> list[tuple[dict[str, float], list[Row]]]:
        """Those whose momentum begins are a group of their own, with memory for it."""
        if not numbers["momentum"]:
            return super()._split(numbers, rows)
        begun = [row for row in rows if row[4] is not None]
        new: list[Row] = [(*row[:4], _buffer_like(row[0], self._state_dtype)) for row in rows if row[4] is None]
        return [*super()._split(numbers, begun), *super()._split({**numbers, "first": 1.0}, new)]

    def _stepped(self, given: list[tuple[dict[str, float], list[Row]]]) -> None:
        for numbers, rows in given:
            if numbers.get("first"):
                for p, _, _, _, buffer in rows:
                    assert p is not None
                    self.state[p]["momentum_buffer"] = buffer


def _buffer_like(p: Any, dtype: torch.dtype | None) -> Tensor:
    return torch.empty_like(p, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)

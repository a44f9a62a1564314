"""One step of a rank: its stages' forwards and backwards in their order, and the messages between them.

Not here: the order (schedule.py), what a stage computes (sequential.py, graph_stages.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ortmodule.distributed.pipeline.messages import Border
from ortmodule.distributed.pipeline.schedule import Action
from ortmodule.errors import InvalidArgumentError

__all__ = ["Stages", "Step"]


class Stages(Protocol):
    """What a step asks of stages: what they hand on, and to run one."""

    handed: list[list[str]]

    def run(
        self, stage: int, leaves: Sequence[Any], handed: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Any]: ...


@dataclasses.dataclass
class _Kept:
    """What backward needs of a forward: what came, what was made and goes on, what came and goes on."""

    came: dict[str, torch.Tensor]
    made: dict[str, torch.Tensor]
    passed: dict[str, torch.Tensor]
    loss: torch.Tensor | None


class Step:
    """Args:
    stages: how the call is cut.
    number: of ranks, and which one this is.
    borders: this rank's, by the stage before.
    micros: of each micro-batch, the flat leaves of its call.
    loss: of the result and a micro-batch's number; None: the results themselves are wanted.

    Attributes:
        total: the sum of the micro-batches' losses over their number, of the last stage's rank.
        results: there, too, without a loss: of each micro-batch by its number.
    """

    def __init__(
        self, stages: Stages, rank: int, world: int, borders: Mapping[int, Border], micros: Sequence[Sequence[Any]],
        loss: Callable[[Any, int], torch.Tensor] | None, device: torch.device,
    ) -> None:  # fmt: skip
        self._stages, self._rank, self._world, self._borders = stages, rank, world, borders
        self._micros, self._loss = micros, loss
        self._count = len(stages.handed) + 1
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._here: dict[tuple[int, int], dict[str, torch.Tensor]] = {}  # messages within a rank that is alone
        self.total = torch.zeros((), device=device)
        self.results: dict[int, Any] = {}

    def _stage(self, action: Action) -> int:
        return action.chunk * self._world + self._rank

    def forward(self, action: Action) -> None:
        stage, micro = self._stage(action), action.micro
        came = self._receive(stage, micro)
        made, result = self._stages.run(stage, self._micros[micro], came)
        loss = None
        if stage == self._count - 1 and self._loss is None:
            self.results[micro] = result
        elif stage == self._count - 1 and self._loss is not None:
            loss = self._loss(result, micro)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise InvalidArgumentError(f"the loss should be one number, a tensor, got {type(loss).__name__}")
            loss = loss / len(self._micros)
            self.total = self.total + loss.detach()
        passed = {} if stage == self._count - 1 else {n: came[n] for n in self._stages.handed[stage] if n not in made}
        if stage < self._count - 1:
            self._hand_on(stage, micro, {name: made.get(name, passed.get(name)) for name in self._stages.handed[stage]})
        if torch.is_grad_enabled():
            self._kept[stage, micro] = _Kept(came, made, passed, loss)

    def _receive(self, stage: int, micro: int) -> dict[str, torch.Tensor]:
        if stage == 0:
            return {}
        if (border := self._borders.get(stage - 1)) is not None:
            return border.receive_values(self._stages.handed[stage - 1])
        came = self._here.pop((stage, micro))
        return {name: value.detach().requires_grad_(value.requires_grad) for name, value in came.items()}

    def _hand_on(self, stage: int, micro: int, values: dict[str, Any]) -> None:
        if (border := self._borders.get(stage)) is not None:
            border.send_values(list(values.values()))
        else:
            self._here[stage + 1, micro] = values

    def backward(self, action: Action) -> None:
        stage, micro = self._stage(action), action.micro
        kept = self._kept.pop((stage, micro))
        if kept.loss is not None:
            if kept.loss.requires_grad:
                kept.loss.backward()
            gradients: dict[str, torch.Tensor] = {}
        else:
            names = self._stages.handed[stage]
            wants = {n: v for n in names if (v := kept.made.get(n, kept.passed.get(n))) is not None and v.requires_grad}
            if (border := self._borders.get(stage)) is not None:
                gradients = border.receive_gradients(wants)
            else:
                gradients = self._here.pop((stage, ~micro))
            made = [name for name in wants if name in kept.made]
            if made:
                torch.autograd.backward([kept.made[n] for n in made], [gradients[n] for n in made])
        if stage > 0:
            self._hand_back(stage, micro, kept, gradients)

    def _hand_back(self, stage: int, micro: int, kept: _Kept, gradients: Mapping[str, torch.Tensor]) -> None:
        back = {}
        for name, value in kept.came.items():
            if value.requires_grad:
                parts = [g for g in (value.grad, gradients.get(name) if name in kept.passed else None) if g is not None]
                back[name] = sum(parts[1:], parts[0]) if parts else torch.zeros_like(value)
        if (border := self._borders.get(stage - 1)) is not None:
            border.send_gradients(list(back.values()))
        else:
            self._here[stage - 1, ~micro] = back

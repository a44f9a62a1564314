"""Tensors that go from stage to stage: activations forward, their gradients back.

Each border between stages has a process group of two for each direction, in which messages keep their order, so that no
send waits for one that goes the other way, with any backend. An activation is announced by its type and shape.
Not here: when they are sent (pipeline.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Border"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_MOST_DIMS = 8


class Border:
    """Between two stages that lie on two ranks.

    Args:
        before, after: the global ranks of the two.
        device: where tensors lie.

    All ranks of the job make all borders, also those of others, in the same order: torch wants it so of groups.
    """

    def __init__(self, before: int, after: int, device: torch.device) -> None:
        self._before, self._after, self._device = before, after, device
        self._forth, self._back = (dist.new_group(sorted((before, after))) for _ in range(2))
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def send_activation(self, value: torch.Tensor) -> None:
        if value.dtype not in _DTYPES or value.dim() > _MOST_DIMS:
            raise TypeError(
                f"a stage's result of type {value.dtype} and {value.dim()} axes cannot go to the next stage"
            )
        head = [_DTYPES.index(value.dtype), value.dim(), *value.shape]
        announced = torch.tensor(head + [0] * (_MOST_DIMS + 2 - len(head)), device=self._device)
        self._send(announced, self._after, self._forth)
        self._send(value.detach().contiguous(), self._after, self._forth)

    def receive_activation(self) -> torch.Tensor:
        announced = torch.empty(_MOST_DIMS + 2, dtype=torch.int64, device=self._device)
        dist.recv(announced, self._before, group=self._forth)
        dtype, dims, *shape = announced.tolist()
        value = torch.empty(shape[:dims], dtype=_DTYPES[dtype], device=self._device)
        dist.recv(value, self._before, group=self._forth)
        return value

    def send_gradient(self, gradient: torch.Tensor) -> None:
        self._send(gradient.contiguous(), self._before, self._back)

    def receive_gradient(self, like: torch.Tensor) -> torch.Tensor:
        gradient = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(gradient, self._after, group=self._back)
        return gradient

    def _send(self, value: torch.Tensor, to: int, group: Any) -> None:
        self._sent.append((dist.isend(value, to, group=group), value))

    def finish(self) -> None:
        """Returns when all that was sent has gone."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

"""Values that go from stage to stage: activations, masks and the like forward, gradients back.

Each border between stages has a process group of two for each direction, in which messages keep their order, so that no
send waits for one that goes the other way, with any backend. Values are announced by their types and shapes, and by
whether they have a history, so that a gradient comes back for them.
Not here: when they are sent (step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ortmodule.errors import InvalidArgumentError

__all__ = ["MOST_VALUES", "Border"]

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool,
           torch.int16, torch.int8, torch.uint8)  # fmt: skip
_MOST_DIMS = 8
MOST_VALUES = 64
_Wait = Callable[[Any, str], None]


class Border:
    """Between two stages that lie on two ranks.

    Args:
        before, after: the global ranks of the two.
        device: where tensors lie.
        wait: waits for a message, and says what it is.

    All ranks of the job make all borders, also those of others, in the same order: torch wants it so of groups.
    """

    def __init__(self, before: int, after: int, device: torch.device, wait: _Wait) -> None:
        self._before, self._after, self._device, self._wait = before, after, device, wait
        self._forth, self._back = (dist.new_group(sorted((before, after))) for _ in range(2))
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def send_values(self, values: Sequence[torch.Tensor]) -> None:
        """To the stage after."""
        heads = [len(values)]
        for value in values:
            if value.dtype not in _DTYPES or value.dim() > _MOST_DIMS:
                raise TypeError(f"a value of type {value.dtype} and {value.dim()} axes cannot go to the next stage")
            head = [_DTYPES.index(value.dtype), int(value.requires_grad), value.dim(), *value.shape]
            heads += head + [0] * (_MOST_DIMS + 3 - len(head))
        heads += [0] * (_HEAD - len(heads))
        self._send(torch.tensor(heads, device=self._device), self._after, self._forth)
        for value in values:
            self._send(_bytes(value.detach().contiguous()), self._after, self._forth)

    def receive_values(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """From the stage before; leaves that want a gradient where they have a history there."""
        heads = torch.empty(_HEAD, dtype=torch.int64, device=self._device)
        self._receive(heads, self._before, self._forth)
        count, *rest = heads.tolist()
        if count != len(names):
            raise InvalidArgumentError(
                f"the stage before hands on {count} values and {len(names)} are expected: ranks have other batches"
            )
        out = {}
        for i, name in enumerate(names):
            dtype, wants, dims, *shape = rest[i * (_MOST_DIMS + 3) : (i + 1) * (_MOST_DIMS + 3)]
            value = torch.empty(shape[:dims], dtype=_DTYPES[dtype], device=self._device)
            self._receive(_bytes(value), self._before, self._forth)
            out[name] = value.requires_grad_() if wants else value
        return out

    def send_gradients(self, gradients: Sequence[torch.Tensor]) -> None:
        """To the stage before."""
        for gradient in gradients:
            self._send(gradient.contiguous(), self._before, self._back)

    def receive_gradients(self, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """From the stage after, for each of these values."""
        out = {}
        for name, value in like.items():
            out[name] = torch.empty_like(value, memory_format=torch.contiguous_format, requires_grad=False)
            self._receive(out[name], self._after, self._back)
        return out

    def _receive(self, into: torch.Tensor, source: int, group: Any) -> None:
        if into.numel():
            self._wait(dist.irecv(into, source, group=group), f"a message of rank {source}")

    def _send(self, value: torch.Tensor, to: int, group: Any) -> None:
        if value.numel():
            self._sent.append((dist.isend(value, to, group=group), value))

    def finish(self) -> None:
        """Returns when all that was sent has gone."""
        for work, _ in self._sent:
            self._wait(work, "a message to another stage")
        self._sent.clear()

    def forget(self) -> None:
        """After a failure: nobody takes what was sent."""
        self._sent.clear()


_HEAD = 1 + MOST_VALUES * (_MOST_DIMS + 3)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.view(torch.uint8) if value.dtype == torch.bool else value

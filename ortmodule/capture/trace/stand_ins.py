"""Stand-ins like those that a trace has: tensors with sizes and without values, made by their fields.

torch's constructor of one asks and sets a score of things that are the same for all stand-ins of a trace and a device.
Not here: what they stand for (patches/costs, repeats/nodes.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._export import config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ... import _C

__all__ = ["StandIns"]


class StandIns:
    """Makes those of one trace."""

    def __init__(self) -> None:
        self._fields: dict[tuple[int, torch.device], tuple[FakeTensorMode, dict[str, Any]]] = {}

    def like(self, one: torch.Tensor, memory: torch.Tensor | None, mode: FakeTensorMode, device: torch.device) -> Any:
        """Another one like `one`, which may be torch's own of the `meta` device.

        Args:
            one: what it shall be like; it is nobody's leaf.
            memory: whose memory it shares; None: it has its own.
            mode: what it belongs to.
            device: where what it stands for would lie.
        """
        meta = _C.like_stand_in(one, memory)
        kept = self._fields.get((id(mode), device))
        if kept is None or config.detect_non_strict_fake_tensor_leaks:
            made = FakeTensor(mode, meta, device)
            self._fields[id(mode), device] = mode, dict(vars(made))
            return made
        made = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(kept[1])
        return made

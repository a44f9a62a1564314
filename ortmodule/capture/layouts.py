"""Tensors that a forward is given and gives another shape, other strides or other memory, by operators in place
(`set_`, `resize_`, `t_`, `unsqueeze_`): a graph writes values alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import CaptureError
from . import torch_private

__all__ = ["Layouts"]


class Layouts:
    """How the tensors lay in memory before the forward.

    Args:
        tensors: of the module and of the call, as the trace has them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        with torch_private.outside_the_trace():
            self._before = [(t, _layout(t)) for t in tensors if t.layout is torch.strided]

    def check(self) -> None:
        """Raises:
        CaptureError: one of them lies there in another way.
        """
        with torch_private.outside_the_trace():
            if any(t.layout is not torch.strided or _layout(t) != layout for t, layout in self._before):
                raise CaptureError(
                    "the shape or the memory of a tensor is changed in place inside forward (set_, resize_, t_); a "
                    "captured graph cannot do that"
                )


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Sizes that vary by their expressions as they were made: a comparison of values would fix them."""
    numbers = (*tensor.shape, None, *tensor.stride(), None, tensor.storage_offset())
    return torch_private.storage_of(tensor), *(n.node._expr if isinstance(n, torch.SymInt) else n for n in numbers)

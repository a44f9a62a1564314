"""What a capture makes of `torch.utils.checkpoint`: a mark on the nodes of each region, which backward computes again.

A reentrant region whose own arguments need no gradient has none in PyTorch either, whatever its parameters say: PyTorch
runs it without recording, and warns. So it does here.

Not here: when the functions of torch are replaced (patches.py), what the marks lead to (csrc/transforms).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint

__all__ = ["marked_call", "marked_generator"]


def marked_generator(regions: Iterator[int]) -> Any:
    """In place of `_checkpoint_without_reentrant_generator`."""

    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with fx_traceback.annotate({"recompute": next(regions)}):
            yield

    return generator


def marked_call(regions: Iterator[int]) -> Any:
    """In place of `CheckpointFunction.apply`, the reentrant form."""

    def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        torch_checkpoint.check_backward_validity(args)
        # The question is the user's code's (settings.py): the graph holds for calls that answer it in the same way.
        recorded = any(arg.requires_grad for arg in args if isinstance(arg, torch.Tensor))
        with fx_traceback.annotate({"recompute": next(regions)}):
            if recorded:
                return function(*args)
            with torch.no_grad():
                return function(*args)

    return apply

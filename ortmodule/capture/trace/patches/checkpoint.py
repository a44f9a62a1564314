"""What a capture makes of `torch.utils.checkpoint`: a mark on the nodes of each region, which backward computes again.

A reentrant region whose own arguments need no gradient has none in PyTorch either, whatever its parameters say: PyTorch
runs it without recording, and warns. So it does here.

Not here: what the marks lead to (csrc/transforms).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils.checkpoint as torch_checkpoint

from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]


def _marked_generator(original: Any, state: TraceState) -> Any:
    """In place of `_checkpoint_without_reentrant_generator`."""

    def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with fx_traceback.annotate({"recompute": next(state.region_numbers)}):
            yield

    return generator


def _marked_call(original: Any, state: TraceState) -> Any:
    """In place of `CheckpointFunction.apply`, the reentrant form."""

    def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        torch_checkpoint.check_backward_validity(args)
        # The question is the user's code's (scope_settings.py): the graph holds for calls that answer it alike.
        recorded = any(arg.requires_grad for arg in args if isinstance(arg, torch.Tensor))
        with fx_traceback.annotate({"recompute": next(state.region_numbers)}):
            if recorded:
                return function(*args)
            with torch.no_grad():
                return function(*args)

    return apply


PATCHES = (
    Patch(torch_checkpoint, "_checkpoint_without_reentrant_generator", _marked_generator),
    Patch(torch_checkpoint.CheckpointFunction, "apply", _marked_call),
)

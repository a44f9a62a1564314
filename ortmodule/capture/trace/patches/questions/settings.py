"""Questions about a call's settings: noted where a forward asks, for the answer becomes a condition of the graph.

Only questions of the user's code and of torch.nn count; torch asks itself all the time while it traces.
Not here: which settings there are, and their answers (trace/state/scope_settings.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..... import _C
from ....torch_private import is_batched, storage_of
from ...patching import Patch
from ...state.scope_settings import (
    GRADIENT_MODE,
    INFERENCE_MODE,
    INFERENCE_TENSORS,
    LEAVES,
    OFFSETS,
    REQUIRES_GRAD,
    STRIDES,
)
from ...tracing import TraceState
from ..autograd_inside import refuse_changed_requires_grad

__all__ = ["PATCHES"]

# (owner, attribute, the settings on which what it says depends)
_FUNCTIONS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (torch, "is_grad_enabled", (GRADIENT_MODE,)),
    (torch, "is_inference_mode_enabled", (INFERENCE_MODE,)),
    (torch, "is_inference", (INFERENCE_TENSORS,)),
    (torch.Tensor, "is_inference", (INFERENCE_TENSORS,)),
    (torch.Tensor, "is_contiguous", (STRIDES,)),
    (torch.Tensor, "stride", (STRIDES,)),
    (torch.Tensor, "dim_order", (STRIDES,)),
    (torch.Tensor, "storage_offset", (OFFSETS,)),
)
# Whether an intermediate tensor requires a gradient depends on the mode as well, and whether it is a leaf on that.
_PROPERTIES = (
    ("requires_grad", (REQUIRES_GRAD, GRADIENT_MODE)),
    ("grad_fn", (REQUIRES_GRAD, LEAVES, GRADIENT_MODE)),
    ("is_leaf", (LEAVES, REQUIRES_GRAD, GRADIENT_MODE)),
)
_TORCH_THAT_COUNTS = ("torch.nn.modules.", "torch.nn.functional", "torch.nn.attention", "torch.nn.utils.")
_TORCH_THAT_DOES_NOT = ("torch.nn.modules.module",)
_OURS_THAT_COUNTS = (
    "ortmodule.capture.trace.patches.checkpoint"  # it asks in place of a function that the forward calls
)


def _counts(scope: dict[str, Any]) -> bool:
    """Whether code with these globals is the user's or torch.nn's."""
    name = scope.get("__name__") or ""
    if name.startswith(_TORCH_THAT_COUNTS):
        return not name.startswith(_TORCH_THAT_DOES_NOT)
    if name == _OURS_THAT_COUNTS:
        return True
    return not name.startswith(("torch.", "ortmodule.")) and name not in ("torch", "ortmodule", "contextlib", "copy")


def _noting(*settings: str) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        asked = state.asked

        def ask(*args: Any, **kwargs: Any) -> Any:
            asked.update(settings)
            return original(*args, **kwargs)

        return ask

    return make


def _noting_property(name: str, *settings: str) -> Callable[[Any, TraceState], Any]:
    changes, shows_history = name == "requires_grad", name == "grad_fn"

    def make(descriptor: Any, state: TraceState) -> Any:
        asked = state.asked

        def ask(self: torch.Tensor) -> Any:
            asked.update(settings)
            if shows_history and state.repeats is not None:
                state.repeats.holds = False  # of blocks that did not run there is another one
            return descriptor.__get__(self)

        def change(self: torch.Tensor, value: bool) -> None:
            refuse_changed_requires_grad(self, value)
            descriptor.__set__(self, value)

        return property(ask, change if changes else None)

    return make


def _noting_memory(original: Any, state: TraceState) -> Any:
    def contiguous(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if result is self and self.layout is torch.strided and not is_batched(self):  # of which a trace has no node
            state.uncopied.add(storage_of(self))
        return result

    return contiguous


def _only_those(state: TraceState) -> _C.Callers:
    return _C.Callers(_counts)


PATCHES = (
    Patch(torch.Tensor, "contiguous", _noting_memory, only=_only_those),
    *(Patch(owner, name, _noting(*settings), only=_only_those) for owner, name, settings in _FUNCTIONS),
    *(Patch(torch.Tensor, name, _noting_property(name, *settings), only=_only_those) for name, settings in _PROPERTIES),
)

"""Whether the forward is being traced: it is told that it is not, and goes the way that it goes in PyTorch.

Code asks this to leave out what a compiler cannot follow, or to compute the same by other means. What a graph has to
equal is the other way. Where the forward asked and that way cannot be captured, it is told the truth in a second trace
(capture/product.py).
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
import torch.fx._symbolic_trace as fx_trace

from ...patching import FORWARD, Patch
from ...tracing import TraceState
from .classes import is_users

__all__ = ["PATCHES"]

_QUESTIONS = (
    (torch.compiler, "is_compiling"),
    (torch.compiler, "is_exporting"),
    (fx_trace, "is_fx_tracing"),
    (fx_trace, "is_fx_symbolic_tracing"),
)
_NAMES = frozenset(name for _, name in _QUESTIONS)
_ASKER = 3  # frames up from an answer: past what was put in place of the function, and its code


def _as_in_pytorch(original: Any, state: TraceState) -> Any:
    tracing = state.tracing

    def answer() -> bool:
        frame: types.FrameType | None = sys._getframe(_ASKER)
        while frame is not None and frame.f_code.co_name in _NAMES:  # torch has the question in several places
            frame = frame.f_back
        if tracing.is_traced or not is_users(frame):
            return bool(original())
        tracing.was_asked = True
        return False

    return answer


PATCHES = tuple(
    Patch(owner, name, _as_in_pytorch, by_code=True, during=FORWARD)
    for owner, name in _QUESTIONS
    if hasattr(owner, name)
)

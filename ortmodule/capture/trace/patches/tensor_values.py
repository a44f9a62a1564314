"""Reads of a tensor's value, which a trace does not see: the audit hears of them.

The value of a tensor that lies outside of the module becomes a number in the graph.
Not here: questions about the values of inputs and buffers, which a graph can ask itself (questions.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..patching import FORWARD, Patch
from ..tracing import TraceState

__all__ = ["ORDER", "PATCHES"]

ORDER = 1  # around what tries operators without a shape rule
_SCALAR = torch.ops.aten._local_scalar_dense.default


def _heard_dispatch(original: Any, state: TraceState) -> Any:
    def dispatch(self: Any, operator: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if operator is _SCALAR:
            tensor = args[0]
            if not isinstance(tensor, FakeTensor):
                state.audit.value_read(tensor)
            elif tensor.constant is not None:
                state.audit.value_read(None)
        state.audit.pause()
        try:
            return original(self, operator, types, args, kwargs)
        finally:
            state.audit.resume()

    return dispatch


def _is_heard(state: TraceState) -> bool:
    return state.audit is not None


PATCHES = (Patch(FakeTensorMode, "_dispatch_impl", _heard_dispatch, during=FORWARD, when=_is_heard),)

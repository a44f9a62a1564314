"""Calls that stay in PyTorch without a word, because what is active around them must see every operator.

A trace (torch.jit.trace, make_fx), a transform (torch.func, forward-mode differentiation), a dispatch mode (counting
operations, fake tensors, selective checkpointing) and a module whose parameters get their shapes from the first call.
The next plain call runs in the engine again. What is captured by torch.compile or by another ORTModule's capture is
not here (ortmodule.py), nor is a fallback, which is said (partial.py).
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

__all__ = ["stays_eager"]


def stays_eager(module: torch.nn.Module) -> bool:
    """Whether a call of `module` belongs to PyTorch at this moment."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _python_dispatch._get_current_dispatch_mode() is not None
        or torch.jit.is_tracing()
        or any(map(torch.nn.parameter.is_lazy, module.parameters()))
    )

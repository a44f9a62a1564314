"""Calls that stay in PyTorch, because what is active around them must see every operator.

Without a word: a trace (torch.jit.trace, make_fx), a transform (torch.func, forward-mode differentiation), a dispatch
mode (counting operations, fake tensors, selective checkpointing), a mode that stands before torch's functions (but that
of a default device, which a graph is made for) and a module whose parameters get their shapes from the first call.
Said once, because it may be on for a whole run: hooks on saved tensors (offloading to the host) and anomaly detection.
The next plain call runs in the engine again. Not here: what is captured by torch.compile or by another ORTModule's
capture (engine_call.py), a fallback, which is said (fallback.py).
"""

from __future__ import annotations

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

__all__ = ["around_reason", "stays_eager"]


def stays_eager(module: torch.nn.Module) -> bool:
    """Whether a call of `module` belongs to PyTorch at this moment."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _python_dispatch._get_current_dispatch_mode() is not None
        or any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())
        or torch.jit.is_tracing()
        or any(map(torch.nn.parameter.is_lazy, module.parameters()))
    )


def around_reason() -> str | None:
    """What is active around this call that the engine cannot honour and that may last, in words."""
    if torch.is_anomaly_enabled():
        return "anomaly detection looks for NaN behind every operator"
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) if torch.is_grad_enabled() else None
    if hooks is not None and getattr(hooks[0], "__globals__", None) is not vars(torch.utils.checkpoint):
        return "hooks on saved tensors see what each operator saves for backward"
    return None

"""`autograd.Function.apply`: traced through, the user's backward would be lost; it becomes `ortmodule::python_op`.

What of torch is made of such Functions is traced through, but for those whose backward is no derivative that a trace of
their forward would have. Not here: the call as the graph has it (function_call.py).
"""

from __future__ import annotations

from typing import Any

import torch

from ....naming import module_of
from .. import library  # noqa: F401  defines the operator
from ..function_call import FunctionCall
from ..patching import Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]

# Functions of torch's own whose backward is no derivative that a trace of their forward would have.
_OPAQUE_FUNCTIONS = ("torch.distributions.", "torch.nn.modules._functions")


def _apply(original: Any, state: TraceState) -> Any:
    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        if module_of(cls).startswith("torch.") and not module_of(cls).startswith(_OPAQUE_FUNCTIONS):
            return original(cls, *args, **kwargs)
        call = FunctionCall(cls, args, kwargs, _any if state.audit is None else state.audit.knows)
        state.calls.append(call)
        # As in eager, what comes in a list or a dict gets no gradient.
        direct = {id(value) for value in (*args, *kwargs.values())}
        tensors = [tensor if id(tensor) in direct else tensor.detach() for tensor in call.tensors]
        return call.restore(original(_Traced, call, *tensors))

    return apply


def _any(value: Any) -> bool:
    return True


class _Traced(torch.autograd.Function):
    """The call in the trace, with a history: the forward may ask whether the results require a gradient. It saves what
    the user's saves, so that what is written into that afterwards is heard of (written_saved.py).
    """

    @staticmethod
    def forward(ctx: Any, call: FunctionCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = tuple(torch.ops.ortmodule.python_op(list(tensors), call.fid, call.sizes))
        ctx.save_for_backward(*(tensors[i] for i in call.saved), *(results[k] for k in call.saved_results))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("a trace has no gradients")


# Its code is exchanged, not the attribute: `self.gelu = Gelu.apply` was bound before.
PATCHES = (Patch(torch.autograd.Function, "apply", _apply, by_code=True),)

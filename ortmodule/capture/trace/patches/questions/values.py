"""Reads of a tensor's value, which a trace does not see: the audit hears of them.

The value of a tensor that lies outside of the module becomes a number in the graph: by an operator that gives a number
(`float(t)`, `if t:`, `torch.equal`), by one of a tensor's methods that give its memory away, or by a constructor of
tensors that is given a list with tensors in it, which torch fills without telling anybody.
Not here: questions about the values of inputs and buffers, which a graph can ask itself (inputs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ....torch_private import is_constant_in_trace
from ...patching import FORWARD, Patch, caller
from ...tracing import TraceState

__all__ = ["ORDER", "PATCHES"]

ORDER = 1  # around what tries operators without a shape rule
_SCALAR = torch.ops.aten._local_scalar_dense.default
_GIVES_NUMBERS = torch.Tag.data_dependent_output
# Methods that give a tensor's memory, or what is in it, away.
_GIVERS = ("tolist", "numpy", "__array__", "data_ptr", "untyped_storage", "_typed_storage", "__dlpack__",
           "__reduce_ex__", "__deepcopy__")  # fmt: skip
_READERS = ("tolist", "numpy", "__array__")  # of these, what reads values itself
_TRACERS = (
    "torch._subclasses", "torch.fx", "torch.export", "torch._export", "torch._functorch", "torch._dynamo",
    "torch._higher_order_ops", "torch._guards", "torch.utils.weak", "ortmodule.",
)  # fmt: skip
_CONSTRUCTORS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor})


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


def _heard_call(original: Any, state: TraceState) -> Any:
    """What records the trace computes on real tensors itself: numbers, and the values of small constants."""

    def call(mode: Any, operator: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        result = original(mode, operator, pre_dispatch, args, kwargs)
        gives_numbers = _GIVES_NUMBERS in operator.tags
        if gives_numbers or is_constant_in_trace(mode.tracer, result):
            for tensor in _tensors(args):
                if not isinstance(tensor, FakeTensor):
                    state.audit.value_read(tensor)
                elif gives_numbers and is_constant_in_trace(mode.tracer, tensor):
                    state.audit.value_read(None)
        return result

    return call


def _heard_method(original: Any, state: TraceState) -> Any:
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, FakeTensor):
            return original(self, *args, **kwargs)
        if not (_for_the_trace() and state.audit.knows(self)):
            state.audit.value_read(self)
        if getattr(original, "__name__", None) not in _READERS:
            return original(self, *args, **kwargs)
        # In inference mode torch reads what an operator returns, which would be the trace's, without memory.
        with _disable_current_modes():
            return original(self, *args, **kwargs)

    return method


def _heard_text(original: Any, state: TraceState) -> Any:
    method = _heard_method(original, state)

    def text(self: torch.Tensor, **kwargs: Any) -> str:
        # An operator shows its arguments in an error. Their values are read by operators, which would end the same way.
        if caller().f_globals.get("__name__") == "torch._ops":
            return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype})"
        return method(self, **kwargs)

    return text


def _for_the_trace() -> bool:
    """Whether a replaced method is called by what makes the trace: it looks where a tensor lies, not what it holds,
    unless nobody knows where the tensor comes from.
    """
    return str(caller().f_globals.get("__name__")).startswith(_TRACERS)


def _heard_constructor(original: Any, state: TraceState) -> Any:
    """At export's own handler: it knows `torch.tensor` by identity, and has a form of it for symbolic numbers."""

    def override(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if function in _CONSTRUCTORS:
            for tensor in _tensors((args, kwargs)):
                if not isinstance(tensor, FakeTensor):
                    state.audit.value_read(tensor)
        return original(self, function, args, kwargs)

    return override


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_heard(state: TraceState) -> bool:
    return state.audit is not None


PATCHES = (
    Patch(FakeTensorMode, "_dispatch_impl", _heard_dispatch, during=FORWARD, when=_is_heard),
    Patch(proxy_tensor, "proxy_call", _heard_call, during=FORWARD, when=_is_heard),
    *(Patch(torch.Tensor, name, _heard_method, during=FORWARD, when=_is_heard) for name in _GIVERS),
    Patch(torch.Tensor, "__repr__", _heard_text, during=FORWARD, when=_is_heard),
    Patch(_NonStrictTorchFunctionHandler, "_override", _heard_constructor, during=FORWARD, when=_is_heard),
)

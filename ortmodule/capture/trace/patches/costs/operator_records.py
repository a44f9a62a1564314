"""An operator that a trace has nothing to ask about becomes a node at once.

torch's way from an operator's call to its node is made for everything that a call may have: subclasses, constants whose
values are known, objects of scripts. It flattens and rebuilds the arguments three times and asks of each leaf what it
is. Most calls have stand-ins of the trace, sizes and plain values; and the sizes of what they return are known already.

Not here: what the operators return (operator_results.py), where in the user's code they are (stack_traces.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._library import utils
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor

from ..... import _C
from ...patching import Patch
from ...stand_ins import StandIns
from ...tracing import TraceState

__all__ = ["PATCHES"]

_SPECIAL = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.is_nonzero.default})
_ASKING = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """An argument is none of those that are known here."""


class _Plain:
    """Records the plain calls of one trace; all others are for `original`."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original, self._stand_ins = original, StandIns()
        self._names: dict[Any, str | None] = {}  # of operators; None: they are not plain

    def call(self, mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        tracer, name = mode.tracer, self._name(func)
        if name is None or not pre_dispatch or getattr(mode, "emulate_precision_casts", False):
            return self._original(mode, func, pre_dispatch, args, kwargs)
        try:
            nodes, named = self._argument(tracer, args), {key: self._argument(tracer, kwargs[key]) for key in kwargs}
        except _Unknown:
            return self._original(mode, func, pre_dispatch, args, kwargs)
        done = proxy_tensor.maybe_handle_decomp(mode, func, args, kwargs)
        if done is not NotImplemented:
            return done
        proxy = fx.Proxy(tracer.create_node("call_function", func, nodes, named, name), tracer)
        before, tracer.enable_thunkify = tracer.enable_thunkify, True
        try:
            result = func(*args, **kwargs)
        finally:
            tracer.enable_thunkify = before
        if type(result) is FakeTensor and _sizes_are_known(result, tracer):
            slot: Any = proxy_tensor._ProxyTensor(proxy, None)
            proxy_tensor.set_proxy_slot(result, tracer, slot)
            proxy.node.meta["val"] = self._stand_ins.like(result, result, result.fake_mode, result.fake_device)
        else:
            proxy_tensor.track_tensor_tree(result, proxy, constant=None, tracer=tracer)
        return result

    def _name(self, func: Any) -> str | None:
        """What its nodes are called."""
        if func not in self._names:
            plain = isinstance(func, OpOverload) and func not in _SPECIAL and _ASKING.isdisjoint(func.tags)
            names = fx.Graph()
            self._names[func] = names._target_to_str(func.overloadpacket.__name__) if plain else None
        return self._names[func]

    def _argument(self, tracer: Any, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            slot = proxy_tensor.get_proxy_slot(value, tracer, None)
            if slot is None or slot.constant is not None:
                raise _Unknown
            return slot.proxy.node
        if kind is tuple or kind is list:
            return kind([self._argument(tracer, one) for one in value])
        if kind is torch.SymInt:
            proxy = proxy_tensor.fetch_sym_proxy(tracer)(value)
            return proxy.node if isinstance(proxy, fx.Proxy) else proxy
        if isinstance(value, _PLAIN):
            return value
        raise _Unknown


def _sizes_are_known(tensor: FakeTensor, tracer: Any) -> bool:
    """Whether each symbolic size, stride and offset of a result is one that an earlier tensor has."""
    symbols = _C.symbols_of(tensor)
    if not symbols:
        return symbols is not None
    sizes = tensor.fake_mode.shape_env
    if sizes is None or sizes.pending_fresh_unbacked_symbols:
        return False
    known = tracer.symnode_tracker.sym_node_dict
    return all(symbol in known for symbol in symbols)


def _recorded(original: Any, state: TraceState) -> Any:
    return _Plain(original).call


def _without_classes(original: Any, state: TraceState) -> Any:
    """What records the trace does not ask of which classes the arguments are; torch looks through them for it."""

    def handle(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if type(mode) is not proxy_tensor.ProxyTorchDispatchMode:
            return original(mode, func, *args, **kwargs)
        return mode.__torch_dispatch__(func, (), args, kwargs)

    return handle


PATCHES = (
    Patch(proxy_tensor, "proxy_call", _recorded),
    Patch(utils, "handle_dispatch_mode", _without_classes),
)

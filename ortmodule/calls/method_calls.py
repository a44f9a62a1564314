"""Methods of the wrapped module that are called on the wrapper, `model.training_step(batch)`.

They run on the wrapped module, as its type, its attributes and `super()` demand. But when one calls the module itself,
`self(x)`, that call belongs in the engine as `model(x)` does, or a training loop written as a method would silently run
in PyTorch. So for as long as such a method runs, the module's own call leads to the wrapper, through the hook that
`nn.Module.compile` uses: torch leaves it out of copies and pickles.

The wrapper owns its MethodCalls, which therefore must not own the wrapper: a cycle would keep a dropped model until
Python's collector runs.

Calls that record no gradients are decoding loops for the most part, whose cache grows by a token per call: the first
few run in PyTorch, as a short text is done before its graphs would be; what cannot be captured of them runs there
whole, for its parts would meet the same cache. `self.forward(x)` stays there, too.

torch's fully_shard notes its state for the object that it is given, the wrapper, and gives the object's class, which is
the wrapped module's (`ORTModule.__class__`), methods that look for it: these run on the wrapper itself.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..naming import module_of

__all__ = ["MethodCalls", "is_composed"]

_HOOK = "_compiled_call_impl"


class MethodCalls:
    """Leads calls that a module makes of itself to its wrapper, while methods run that were called on the wrapper.

    Args:
        module: the wrapped module.
        wrapper: what is called in its place; it holds this object as `_methods`.
    """

    def __init__(self, module: nn.Module, wrapper: Any) -> None:
        self._module, self._wrapper = module, weakref.ref(wrapper)
        self._lock = threading.Lock()
        self._methods = 0  # how many run
        self._engine_calls = 0  # how many run on the wrapper
        self._hook = _hook_of(weakref.ref(self))
        self._functions: dict[Callable[..., Any], Callable[..., Any]] = {}  # so that a method equals itself

    def through(self, value: Any) -> Any:
        """`value`, an attribute of the module; a method of it comes back bound to the wrapper."""
        if not isinstance(value, types.MethodType) or value.__self__ is not self._module:
            return value
        if torch.compiler.is_compiling():
            return value
        function, wrapper = value.__func__, self._wrapper()
        if module_of(function).startswith("torch.distributed.fsdp.") and is_composed(wrapper):
            return types.MethodType(function, wrapper)
        if function not in self._functions:
            self._functions[function] = _routed(function)
        return types.MethodType(self._functions[function], wrapper)

    def set_aside(self) -> contextlib.AbstractContextManager[None]:
        """Within it, what calls the module calls the module: captures and fallbacks do, beside a method as well."""
        return self._counted("_engine_calls")

    @contextlib.contextmanager
    def _counted(self, counter: str) -> Iterator[None]:
        self._count(counter, 1)
        try:
            yield
        finally:
            self._count(counter, -1)

    def _count(self, counter: str, step: int) -> None:
        with self._lock:
            setattr(self, counter, getattr(self, counter) + step)
            attributes = vars(self._module)
            if self._methods and not self._engine_calls:
                attributes.setdefault(_HOOK, self._hook)  # a compiled module's own stays
            elif attributes.get(_HOOK) is self._hook:
                del attributes[_HOOK]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The module's call of itself."""
        wrapper = self._wrapper()
        if wrapper is None:
            return self._module._call_impl(*args, **kwargs)
        decodes = not torch.is_grad_enabled()
        with self.set_aside(), wrapper._engine_call.whole_or_not() if decodes else contextlib.nullcontext():
            return wrapper(*args, **kwargs)


def is_composed(wrapper: Any) -> bool:
    """Whether torch's fully_shard keeps a state for the wrapper, under which its methods look for it."""
    registry = sys.modules.get("torch.distributed._composable_state")
    return registry is not None and registry._get_module_state(wrapper) is not None


def _routed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method to be bound to a wrapper."""

    @functools.wraps(function)
    def method(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        calls: MethodCalls = wrapper._methods
        with calls._counted("_methods"):
            return function(calls._module, *args, **kwargs)

    return method


def _hook_of(calls: weakref.ref[MethodCalls]) -> Callable[..., Any]:
    """What stands on the module while a method runs, which holds `calls`."""

    def hook(*args: Any, **kwargs: Any) -> Any:
        running = calls()
        assert running is not None
        return running.call(*args, **kwargs)

    return hook

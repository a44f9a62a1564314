"""Methods of the wrapped module that are called on the wrapper, `model.training_step(batch)`.

They run on the wrapped module, as its type, its attributes and `super()` demand. But when one calls the module itself,
`self(x)`, that call belongs in the engine as `model(x)` does, or a training loop written as a method would silently run
in PyTorch. So for as long as such a method runs, the module's own call leads to the wrapper, through the hook that
`nn.Module.compile` uses: torch leaves it out of copies and pickles.

Calls that record no gradients stay in PyTorch: what makes them in methods are decoding loops, whose cache grows by a
token per call. `self.forward(x)` stays there as well.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["MethodCalls"]

_HOOK = "_compiled_call_impl"


class MethodCalls:
    """Leads calls that a module makes of itself to its wrapper, while methods run that were called on the wrapper.

    Args:
        module: the wrapped module.
        wrapper: what is called in its place.
    """

    def __init__(self, module: nn.Module, wrapper: Callable[..., Any]) -> None:
        self._module, self._wrapper = module, wrapper
        self._lock = threading.Lock()
        self._methods = 0  # how many run
        self._engine_calls = 0  # how many run on the wrapper
        self._hook = self._call
        self._functions: dict[Callable[..., Any], Callable[..., Any]] = {}  # so that a method equals itself

    def through(self, value: Any) -> Any:
        """`value`, an attribute of the module; a method of it comes back bound to the wrapper."""
        if not isinstance(value, types.MethodType) or value.__self__ is not self._module:
            return value
        if torch.compiler.is_compiling():
            return value
        function = value.__func__
        if function not in self._functions:
            self._functions[function] = self._routed(function)
        return types.MethodType(self._functions[function], self._wrapper)

    def _routed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def method(_: Any, *args: Any, **kwargs: Any) -> Any:
            with self._counted("_methods"):
                return function(self._module, *args, **kwargs)

        return method

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

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._module._call_impl(*args, **kwargs)
        with self.set_aside():
            return self._wrapper(*args, **kwargs)

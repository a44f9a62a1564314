"""The parts of a module that run in the engine when the module as a whole cannot be captured.

The module's own forward runs in PyTorch; while it does, the forward of each of its largest sub-modules leads to a graph
of that sub-module's own, around which its own hooks run. One that cannot be captured either is taken apart in the same
way. A sub-module that torch runs with one call (nn.Linear, nn.ReLU ...) is left alone: a graph of one node gains
nothing.

Not here: how a call is tried (engine_call.py), when parts run (fallback.py).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch.nn.modules.module as torch_module
from torch import nn

from .. import _C
from ..graph_transition.built_sessions import BuiltSession
from ..naming import module_of
from ..options import DebugOptions, Options, for_parts
from ..report import Export, SessionReport
from .engine_call import EngineCall
from .fallback import Fallback

__all__ = ["fallback_of"]


def fallback_of(
    module: nn.Module,
    options: Options,
    debug: DebugOptions,
    owner: type[nn.Module],
    is_part: bool = False,
    alike: set[Any] | None = None,
) -> Fallback:
    """What runs the calls of `module` that no graph is made of.

    Args:
        module: the module, the wrapped one or a part.
        options, debug: the wrapper's.
        owner: the type whose instances run in the engine on their own (ORTModule).
        is_part: whether the module is a part itself.
        alike: see `Fallback`.
    """
    alike = set() if alike is None else alike
    return Fallback(module, functools.partial(_parts_of, module, options, debug, owner, alike), is_part, alike)


def _parts_of(
    module: nn.Module, options: Options, debug: DebugOptions, owner: type[nn.Module], alike: set[Any]
) -> Sequence[_Part]:
    return [_Part(child, options, debug, owner, alike) for child in _candidates(module, owner)]


class _Part:
    """One sub-module: a graph of its own, or, when that fails, its own parts."""

    def __init__(
        self, module: nn.Module, options: Options, debug: DebugOptions, owner: type[nn.Module], alike: set[Any]
    ) -> None:
        self._module = module
        fallback = fallback_of(module, options, debug, owner, True, alike)
        own_forward = functools.partial(_Part._own_forward, weakref.proxy(self))  # no cycle: it goes with the wrapper
        parts = for_parts(options)
        self._call = EngineCall(module, parts, debug, fallback, capturing=own_forward, own_hooks=False)
        self._had_own: Any = None  # a forward that somebody set on the instance

    def install(self) -> None:
        self._had_own = self._module.__dict__.get("forward")
        original = self._call.eager = self._module.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            # A hook before it may set what the forward reads, as weight_norm's does, each time anew.
            if self._module._forward_pre_hooks or torch_module._global_forward_pre_hooks:
                return self._call.fallback.run(original, args, kwargs)
            return self._call.run(args, kwargs)

        self._module.__dict__["forward"] = forward

    def remove(self) -> None:
        if self._had_own is not None:
            self._module.__dict__["forward"] = self._had_own
        else:
            self._module.__dict__.pop("forward", None)

    @contextlib.contextmanager
    def _own_forward(self) -> Iterator[None]:
        """A capture calls the sub-module: with its own forward."""
        patched = self._module.__dict__.pop("forward", None)
        if self._had_own is not None:
            self._module.__dict__["forward"] = self._had_own
        try:
            yield
        finally:
            if patched is not None:
                self._module.__dict__["forward"] = patched

    def session_reports(self) -> Iterator[SessionReport]:
        return self._call.session_reports()

    def built_sessions(self) -> Iterator[BuiltSession]:
        return self._call.built_sessions()

    def derived_sessions(self) -> Iterator[_C.Session]:
        return self._call.derived_sessions()

    def exports(self) -> Iterator[Export]:
        return self._call.exports()


def _candidates(module: nn.Module, owner: type[nn.Module]) -> list[nn.Module]:
    """The largest sub-modules of `module` that are worth a graph, each once."""
    found: dict[int, nn.Module] = {}

    pending = list(module.children())[::-1]
    while pending:
        child = pending.pop()
        if isinstance(child, owner) or child is module or not hasattr(child, "forward"):
            continue  # the last: a ScriptModule with methods of other names
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            pending.extend(list(child.children())[::-1])  # a container has no forward
        elif next(child.children(), None) is not None or not module_of(type(child)).startswith("torch.nn."):
            found.setdefault(id(child), child)
    return list(found.values())

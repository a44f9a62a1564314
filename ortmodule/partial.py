"""Runs the parts of a module that can be captured, when the module as a whole cannot.

The module's own forward runs in PyTorch; while it does, the forward of each of its largest sub-modules leads to a graph
of that sub-module's own. One that cannot be captured either is taken apart in the same way. A sub-module that torch
runs with one call (nn.Linear, nn.ReLU ...) is left alone: a graph of one node gains nothing.

Not here: capture and the choice of a graph (graph_transition), what the user is told (ortmodule.py).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from . import _C
from .errors import CaptureError, ORTModuleError
from .graph_transition import GraphTransitionManager, is_unexpected
from .graph_transition.signature import hook_tables
from .options import DebugOptions, Options, for_parts
from .report import Export, SessionReport

__all__ = ["PartialFallback", "must_run_whole"]


def must_run_whole(error: Exception) -> bool:
    """Whether PyTorch must run all of what failed to be captured.

    A forward that computes gradients of its own sub-modules may differentiate them again, which no graph can.
    """
    return isinstance(error, CaptureError) and error.differentiates


class PartialFallback:
    """The sub-modules of one module that runs in PyTorch.

    Args:
        module: the module that could not be captured.
        owner: the type whose instances run in the engine on their own (ORTModule).
        whole: whether PyTorch runs every sub-module as well.
    """

    def __init__(
        self, module: nn.Module, options: Options, debug: DebugOptions, owner: type[nn.Module], whole: bool = False
    ) -> None:
        self._parts = [] if whole else [_Part(m, options, debug, owner) for m in _candidates(module, owner)]
        self._lock = threading.Lock()
        self._running = 0

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`forward(*args, **kwargs)`, with the parts in place of the sub-modules' forwards."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                for part in self._parts:
                    part.install()
        try:
            return forward(*args, **kwargs)
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    for part in self._parts:
                        part.remove()

    def session_reports(self) -> Iterator[SessionReport]:
        for part in self._parts:
            yield from part.session_reports()

    def sessions(self) -> Iterator[_C.Session]:
        for part in self._parts:
            yield from part.sessions()

    def exports(self) -> Iterator[Export]:
        for part in self._parts:
            yield from part.exports()


class _Part:
    """One sub-module: a graph of its own, or, when that fails, its own parts."""

    def __init__(self, module: nn.Module, options: Options, debug: DebugOptions, owner: type[nn.Module]) -> None:
        self._module, self._options, self._debug, self._owner = module, options, debug, owner
        self._manager = GraphTransitionManager(module, for_parts(options), debug)
        self._inner: PartialFallback | None = None
        self._broken = False
        self._whole = False
        self._lock = threading.RLock()
        self._had_own: Any = None  # a forward that somebody set on the instance

    def install(self) -> None:
        self._had_own = self._module.__dict__.get("forward")
        original = self._module.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(original, args, kwargs)

        self._module.__dict__["forward"] = forward

    def remove(self) -> None:
        if self._had_own is not None:
            self._module.__dict__["forward"] = self._had_own
        else:
            self._module.__dict__.pop("forward", None)

    def _forward(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Hooks of the sub-module itself run around this forward already; a graph would run them again.
        if not self._broken and not any(hook_tables(self._module)):
            try:
                result = self._engine_forward(original, args, kwargs)
            except ORTModuleError as error:
                if not is_unexpected(error):
                    raise
                self._manager.release_edges()
                return original(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self._inner is None:
            self._inner = PartialFallback(self._module, self._options, self._debug, self._owner, self._whole)
        return self._inner.run(original, args, kwargs)

    def _engine_forward(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for fast in self._manager.fast_calls:
            result = fast.call(args, kwargs)
            if result is not NotImplemented:
                return result
        if self._manager.is_higher_order(args, kwargs):
            return original(*args, **kwargs)
        try:
            transition, leaves = self._captured(args, kwargs)
        except (ORTModuleError, TypeError) as error:
            self._broken, self._whole = True, must_run_whole(error)
            return NotImplemented
        return transition.run(leaves)

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:  # capture calls the sub-module: with its own forward
            patched = self._module.__dict__.pop("forward", None)
            if self._had_own is not None:
                self._module.__dict__["forward"] = self._had_own
            try:
                return self._manager.use_cache_or_reconstruct_post_processed_model(args, kwargs)
            finally:
                if patched is not None:
                    self._module.__dict__["forward"] = patched

    def session_reports(self) -> Iterator[SessionReport]:
        yield from (t.report() for t in self._manager.transitions())
        if self._inner is not None:
            yield from self._inner.session_reports()

    def sessions(self) -> Iterator[_C.Session]:
        yield from (t.session for t in self._manager.transitions())
        if self._inner is not None:
            yield from self._inner.sessions()

    def exports(self) -> Iterator[Export]:
        yield from self._manager.exports
        if self._inner is not None:
            yield from self._inner.exports()


def _candidates(module: nn.Module, owner: type[nn.Module]) -> list[nn.Module]:
    """The largest sub-modules of `module` that are worth a graph, each once."""
    found: dict[int, nn.Module] = {}

    def look(children: Iterator[nn.Module]) -> None:
        for child in children:
            if isinstance(child, owner) or child is module:
                continue
            if isinstance(child, nn.ModuleList | nn.ModuleDict):
                look(child.children())  # a container has no forward
            elif next(child.children(), None) is not None or not type(child).__module__.startswith("torch.nn."):
                found.setdefault(id(child), child)

    look(module.children())
    return list(found.values())

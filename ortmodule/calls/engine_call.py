"""Calls of one module through the engine: the machine of an ORTModule and of each part of one that runs in PyTorch.

A call is tried with the native patterns of earlier ones, then with the graphs that there are; else it is captured. One
that cannot be captured runs in PyTorch, and its parts in the engine (fallback.py), as does one whose data are not what
its graph was captured for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .. import _C
from ..capture import Captured
from ..capture.containers.nodes import leaves_of
from ..capture.trace.tracing import LOCK, captured_elsewhere
from ..capture.trace.wrapper import CHANGED_WITH_GRADIENTS
from ..errors import (
    CaptureError,
    FilledCacheError,
    GivenChangeError,
    IndexOutOfRangeError,
    LinearAlgebraError,
    OperatorNotImplementedError,
    ORTModuleError,
    UnfitCallError,
    UnsupportedError,
)
from ..graph_transition import GraphTransitionManager, NoLossError
from ..graph_transition.built_sessions import BuiltSession
from ..options import DebugOptions, Options
from ..report import Export, SessionReport
from .eager_calls import around_reason, stays_eager
from .fallback import Fallback

__all__ = ["FIRST_IN_PYTORCH", "EngineCall"]

# Of the calls that run whole and look alike. A count, not a time: two runs of a program decode alike.
FIRST_IN_PYTORCH = 16
# A window that fills may want two or three graphs for one size each; a forward that fixes its sizes wants one a token.
_MOST_FIXED = 4
# Calls that leave tensors in caches, one for each size say.
_MOST_FILLS = 16

_Within = Callable[[], contextlib.AbstractContextManager[Any]]


def _is_of_data(error: Exception, given: Any) -> bool:
    """Whether a run ended because of its data: they are not what its graph was captured for, or a position is outside
    of what it points into. PyTorch runs such a call; not the latter on a GPU, which would be lost to the process.
    """
    if isinstance(error, IndexOutOfRangeError):
        return _on_the_host(given)
    return isinstance(error, ORTModuleError) and str(error).startswith("[Expect]")


def _is_of_a_kernel(error: Exception, given: Any) -> bool:
    """Whether an operator's kernel could not work on what it was given, on the CPU."""
    of_a_kernel = type(error) in (ORTModuleError, OperatorNotImplementedError, LinearAlgebraError)
    return of_a_kernel and " node '" in str(error) and _on_the_host(given)


def _on_the_host(given: Any) -> bool:
    return all(leaf.device.type == "cpu" for leaf in leaves_of(given) if isinstance(leaf, torch.Tensor))


def _look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What tells kinds of calls apart at a glance."""
    return tuple(map(type, args)), tuple((name, type(value)) for name, value in kwargs.items())


class EngineCall:
    """Runs the calls of one module.

    Args:
        module: what is captured.
        options, debug: the wrapper's.
        fallback: runs what no graph is made of.
        aside: what everything but a steady call runs within.
        capturing: what a capture runs within besides.
        own_hooks: whether the module's own forward hooks belong to a call; otherwise they run around it.

    Attributes:
        eager: runs the module in PyTorch; the module itself unless set to something else.
        manager: its graphs.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        debug: DebugOptions,
        fallback: Fallback,
        aside: _Within = contextlib.nullcontext,
        capturing: _Within = contextlib.nullcontext,
        own_hooks: bool = True,
    ) -> None:
        self._module, self._options = module, options
        self._aside, self._capturing = aside, capturing
        self.eager: Callable[..., Any] = module
        self._whole_or_not = threading.local()  # whether calls of this thread run whole, in the engine or in PyTorch
        self._looks: Counter[Any] = Counter()  # how many of these looked alike
        self._fills = 0  # how many calls ran in PyTorch to fill a cache
        self._fixed: Counter[Any] = Counter()  # how many graphs of these hold for one size of what varies
        self._refused: set[Any] = set()  # those that run in PyTorch
        self.fallback = fallback
        self.manager = GraphTransitionManager(module, options, debug, own_hooks)

    def keep_in_engine(self, reason: str) -> None:
        """No call runs in PyTorch any more, which could not: one that cannot be captured raises, with the reason."""
        name = type(self._module).__name__

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise UnsupportedError(f"a call of {name} cannot run in PyTorch: {reason}")

        self.eager = refuse
        self._options = dataclasses.replace(self._options, fallback="error")

    @contextlib.contextmanager
    def whole_or_not(self) -> Iterator[None]:
        """Within it, a call of this thread that is not captured runs in PyTorch, and its parts as well. So do others
        that look like it, whatever their arguments hold: a loop that decodes makes thousands, each with another cache.
        And so do the first few, which would be over before their graphs were made.
        """
        before, self._whole_or_not.on = getattr(self._whole_or_not, "on", False), True
        try:
            yield
        finally:
            self._whole_or_not.on = before

    def graph_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Captured, list[Any]]:
        """The graph for a call, not compiled, and the call's flat leaves. Raises CaptureError where there is none."""
        with self._aside(), LOCK, self._capturing():
            return self.manager.graph_of(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result. Raises what the module raises, and ORTModuleError where the options ask for that."""
        try:
            for fast in self.manager.fast_calls:
                result = fast.call(args, kwargs)
                if result is not NotImplemented:
                    return result
            return self._slow(args, kwargs)
        except ORTModuleError as error:
            failure = error
        try:  # not in the handler, where the module could see what is handled
            return self.after_error(failure, args, kwargs)
        finally:
            del failure  # which holds this frame

    def after_error(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call gives that ended in `error` in the engine."""
        of_data = _is_of_data(error, (args, kwargs))
        # A forward may go on where an operator fails; one that does not has written what it writes up to there.
        of_kernel = _is_of_a_kernel(error, (args, kwargs))
        if not of_data and (not of_kernel or self._options.fallback == "error"):
            try:
                raise error
            finally:
                del error  # which holds this frame
        self.manager.release_edges()
        # Which raises, in PyTorch's words, or in the module's own; and leaves behind what it leaves up to there.
        result = self.eager(*args, **kwargs)
        if not of_data:
            self.fallback.say_once(f"a call of {{}} ran in PyTorch, as it ended in an error in the engine: {error}")
        return result

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for a call that no native pattern fits."""
        if (torch.compiler.is_compiling() and not captured_elsewhere()) or stays_eager(self._module):
            return self.eager(*args, **kwargs)
        if (reason := around_reason()) is not None:
            return self._around(reason, args, kwargs)
        whole = getattr(self._whole_or_not, "on", False)
        with self._aside():
            self.manager.release_edges()  # PyTorch may run this one, or another session
            if (whole and self._is_for_pytorch(args, kwargs)) or self.manager.is_higher_order(args, kwargs):
                return self.eager(*args, **kwargs)
            if self.fallback.has_failed(lambda: self._kind(args, kwargs)):
                return self.eager(*args, **kwargs) if whole else self.fallback.run(self.eager, args, kwargs)
            look = (type(self._module), _look(args, kwargs))
            if self.fallback.is_like_a_failed_part(look) and torch.is_grad_enabled():
                return self._without_graph(GivenChangeError(CHANGED_WITH_GRADIENTS), args, kwargs)
            graphs, failure = len(self.manager.exports), None
            try:
                with LOCK, self._capturing():  # torch's tracing is one per process, and takes the module apart
                    transition, leaves = self.manager.use_cache_or_reconstruct_post_processed_model(args, kwargs)
            except NoLossError:
                raise
            except (ORTModuleError, TypeError) as error:
                failure = error
            if isinstance(failure, FilledCacheError):
                self._fills += 1
                if self._fills <= _MOST_FILLS:
                    return self.eager(*args, **kwargs)
                failure = CaptureError(f"{failure}, of one call after the other")
            if failure is not None:
                try:
                    return self._not_captured(failure, look, whole, args, kwargs)
                finally:
                    del failure
            if whole and len(self.manager.exports) > graphs and (fixed := self.manager.exports[-1].specialized):
                self._fixed[look[1]] += 1
                if self._fixed[look[1]] >= _MOST_FIXED:
                    self._leave_to_pytorch("; ".join(fixed), args, kwargs)
            self.fallback.note_success(lambda: self._kind(args, kwargs))
            return transition.run(leaves)

    def _around(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in PyTorch, because of what is active around it."""
        self.fallback.say_around(reason)
        with self._aside():
            self.manager.release_edges()
            return self.eager(*args, **kwargs)

    def _not_captured(
        self, error: Exception, look: tuple[type, Any], whole: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(error, GivenChangeError):
            self.fallback.alike.add(look)
        if whole and self._options.fallback != "error":
            result = self.eager(*args, **kwargs)
            self._leave_to_pytorch(str(error), args, kwargs)
            return result
        try:
            return self._without_graph(error, args, kwargs)
        finally:
            del error  # which holds this frame

    def _without_graph(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._options.fallback == "error":
            try:
                raise error
            finally:
                del error  # which holds this frame
        if isinstance(error, UnfitCallError):  # its parts would meet the same tensors
            result = self.eager(*args, **kwargs)
            self.fallback.note(str(error), error)
            return result
        self.fallback.prepare(error)
        # A call that is wrong in itself raises here, and changes nothing.
        result = self.fallback.run(self.eager, args, kwargs)
        self.fallback.note(self._kind(args, kwargs), error)
        return result

    def _is_for_pytorch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call that runs whole is one of the first few of its look, or of one that is not captured."""
        look = _look(args, kwargs)
        if look in self._refused:
            return True
        self._looks[look] += self._looks[look] <= FIRST_IN_PYTORCH
        return self._looks[look] <= FIRST_IN_PYTORCH and self._options.fallback != "error"

    def _leave_to_pytorch(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Has further calls that run whole, and look like this one, run in PyTorch."""
        self._refused.add(_look(args, kwargs))
        self.fallback.say_once(
            f"calls without gradients in methods of {{}} run in PyTorch, not in ORTModule's engine: {reason}"
        )

    def _kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What calls have in common that one graph could be made of."""
        try:
            return self.manager.signature(args, kwargs)
        except ORTModuleError as error:  # an argument that has no signature
            return str(error)

    # -- what it did, its parts included ----------------------------------------------------------------------------

    def session_reports(self) -> Iterator[SessionReport]:
        yield from (t.report() for t in self.manager.transitions())
        for part in self.fallback.parts():
            yield from part.session_reports()

    def built_sessions(self) -> Iterator[BuiltSession]:
        for t in self.manager.transitions():
            yield BuiltSession(self._module, t.session, t.info, t.mode)
            if t.quick is not None:
                yield BuiltSession(self._module, t.quick, t.info, t.mode)
        for part in self.fallback.parts():
            yield from part.built_sessions()

    def sessions(self) -> Iterator[_C.Session]:
        """Those of `built_sessions`, and those that give gradients with history."""
        yield from (built.session for built in self.built_sessions())
        yield from self.derived_sessions()

    def derived_sessions(self) -> Iterator[_C.Session]:
        for t in self.manager.transitions():
            yield from t.derivatives.sessions() if t.derivatives else ()
        for part in self.fallback.parts():
            yield from part.derived_sessions()

    def exports(self) -> Iterator[Export]:
        yield from self.manager.exports
        for part in self.fallback.parts():
            yield from part.exports()

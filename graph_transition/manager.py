"""GraphTransitionManager: finds or makes the graph for a call.

States of a graph: captured -> post-processed -> session built. A call walks only the part of that way that is
missing. Graphs are kept per signature; among those of one signature the first whose sizes fit is used, a static one
before dynamic ones, so that A -> B -> A exports twice and any third size not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import time
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _C
from ..capture import Captured, ResultOrder, leaf_names, torch_private
from ..capture.containers.plain_objects import count, take_changed_apart
from ..capture.convert.onnx_graph import run_device
from ..capture.leftovers import leaves_nothing
from ..capture.module_tensors import named_parameters, named_tensors
from ..capture.trace.messages import raising
from ..capture.trace.wrapper import CHANGED_WITH_GRADIENTS
from ..errors import (
    CaptureError,
    ChangedValueError,
    ORTModuleError,
    SharedMemoryError,
    UnfitCallError,
    WrittenHistoryError,
)
from ..options import DebugOptions, Options
from ..report import Export
from ..vouching import vouched_ids
from .aliases import written_history, written_overlap
from .attempts import CaptureAttempts, Sizes
from .audit import Audit, Effect
from .captured_graph import CapturedGraph, given_elsewhere, lost_effect
from .conditions import QueryCondition, Roots
from .disk.cache import DiskCache
from .fast_call import make_fast_call
from .higher_order import HigherOrder
from .hook_order import hook_order
from .info import PostExportProcessedModelInfo
from .late_outputs import add_late_outputs
from .ready_session import BoundSession, ReadySession, SessionBuilder
from .result_order import inner_views, result_order
from .signature import Call, CallSignature, hook_tables
from .until_backward import UntilBackward

__all__ = ["GraphTransitionManager"]

_LOGGER = logging.getLogger("ortmodule")
# A graph costs a second. A Python value that changes from step to step (a schedule) is better read in PyTorch.
_VALUE_CHANGES = 8
# The same of numbers among the arguments, a few of which may come again and again.
_ARGUMENT_VALUES = 16
# Call patterns that are tried before the signature is computed: train and eval, the stages of a cache that fills, ...
_FAST_CALLS = 8


class GraphTransitionManager:
    """Owns the graphs of one module.

    Args:
        module: the module.
        options, debug: the wrapper's.
        own_hooks: whether the module's own forward hooks belong to a call; otherwise they run around it.
    """

    def __init__(self, module: torch.nn.Module, options: Options, debug: DebugOptions, own_hooks: bool = True) -> None:
        self._module, self._own_hooks = module, own_hooks
        self._options = options
        self._attempts = CaptureAttempts(module)
        self._builder = SessionBuilder(module, options, debug)
        self._disk = DiskCache(module, options) if options.cache_dir else None
        self._graphs: OrderedDict[CallSignature, list[CapturedGraph]] = OrderedDict()
        self.exports: list[Export] = []
        self.fast_calls: list[_C.FastCall] = []
        self._value_changes: Counter[str] = Counter()
        self._early: _C.EarlyAccumulators | None = None  # of a graph that is being made
        self._left_behind: set[str] = set()  # names of what a captured forward has changed
        self._post_process: Callable[[PostExportProcessedModelInfo], PostExportProcessedModelInfo] | None = None
        self._on_session: Callable[[_C.Session, str], None] | None = None
        # Calls whose gradients the engine does not give, with the reason.
        self._higher_order: dict[tuple[CallSignature, tuple[bool, ...]], str] = {}

    def process_graphs(
        self,
        post_process: Callable[[PostExportProcessedModelInfo], PostExportProcessedModelInfo],
        on_session: Callable[[_C.Session, str], None] | None = None,
        in_engine: bool = False,
    ) -> None:
        """From now on every graph is compiled as `post_process` makes it of what was captured; `on_session` is told of
        a session before it first runs, with the reason for its graph. `in_engine`: no session asks PyTorch for
        anything. What was asked for before is done, too, and first.
        """
        if in_engine:
            self._options = dataclasses.replace(self._options, fallback="error")
        earlier, told = self._post_process, [f for f in (self._on_session, on_session) if f is not None]
        self._post_process = post_process if earlier is None else lambda info: post_process(earlier(info))

        def tell(session: _C.Session, reason: str) -> None:
            for one in told:
                one(session, reason)

        self._on_session = tell if told else None
        self._keep_fast_calls([])
        for graphs in self._graphs.values():
            for graph in graphs:
                graph.sessions.clear()

    def transitions(self) -> list[ReadySession]:
        """Every session that is kept."""
        return [t for graphs in self._graphs.values() for g in graphs for t in g.sessions.values()]

    def release_edges(self) -> None:
        """Lets the sessions go of what they keep of autograd between steps."""
        for transition in self.transitions():
            transition.session.release_edges()

    def signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSignature:
        """The signature of a call. Raises CaptureError for an argument that has none."""
        return Call.of(args, kwargs, self._module).signature

    @property
    def higher_order(self) -> str | None:
        """Why there are calls that PyTorch runs because of the gradients that were asked for; None: there are none."""
        return next(iter(self._higher_order.values()), None)

    def is_higher_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this is one of them."""
        if not self._higher_order or not torch.is_grad_enabled():
            return False
        try:
            call = Call.of(args, kwargs, self._module)
            return (call.signature, call.wanting) in self._higher_order
        except ORTModuleError:  # an argument that has no signature
            return False

    def use_cache_or_reconstruct_post_processed_model(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[ReadySession | BoundSession, list[Any]]:
        """The session for this call, made if need be, and the call's flat leaves.

        Raises:
            CaptureError: the module cannot be captured.
            ORTModuleError: the captured graph cannot be compiled.
        """
        try:
            return self._ready(args, kwargs)
        finally:
            self._early = None

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ReadySession | BoundSession, list[Any]]:
        call = Call.of(args, kwargs, self._module)
        graph = self._find(call)
        if graph is None or self._is_refused_otherwise(graph, call):
            try:
                graph = self._export(call, graph)
            except ChangedValueError as error:
                counted = [count(kind, name) for kind, name in error.counters]
                if not any(counted) and not take_changed_apart(call.leaves, error.changed):
                    raise
                graph = None
            if graph is None:
                return self._ready(args, kwargs)  # what it changes is part of the call now
        if written_overlap(graph.captured, call.leaves, self._module):
            raise SharedMemoryError("arguments share memory that the forward writes, which a graph does not see")
        if (written := written_history(graph.captured, call.leaves, self._module)) is not None:
            raise WrittenHistoryError(f"the forward writes into {written}, which wants a gradient")
        try:
            transition = self._session(graph, call)
        except ORTModuleError as error:
            if graph.loaded is None or self._disk is None:
                raise
            _LOGGER.warning("a graph from the cache cannot be compiled and is made anew: %s", error)
            self._disk.discard(graph.loaded)
            self._graphs[call.signature].remove(graph)
            graph = self._export(call)
            transition = self._session(graph, call)
        if graph.captured.mutations and torch_private.saves_for_checkpoint():
            raise UnfitCallError("the forward writes tensors, and a checkpoint around it runs it twice")
        if transition.mode == "training" and graph.captured.needs_given:
            raise UnfitCallError(CHANGED_WITH_GRADIENTS)
        if torch.is_grad_enabled() and (names := _gaining_a_history(graph.captured, transition.session)):
            raise WrittenHistoryError(f"the forward writes what has a history into {', '.join(map(repr, names))}")
        bound = graph.bound(call)
        fast = make_fast_call(self._module, transition, graph, call, bound)
        if fast is not None:
            transition.fast_calls.append(fast)
            self._keep_fast_calls([fast, *self.fast_calls])
        if graph.effects or bound is not None or graph.captured.needs_given:
            return BoundSession(transition, graph.leave_effects(call), bound, call.changeable), call.leaves
        return transition, call.leaves

    # -- graphs -----------------------------------------------------------------------------------------------------

    def graph_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Captured, list[Any]]:
        """The graph for a call, made if need be and not compiled, and the call's flat leaves: for what makes other
        graphs of it. While it holds, calls get the very same object.

        Raises:
            CaptureError: the module cannot be captured, or its forward leaves something behind besides its result.
        """
        try:
            call = Call.of(args, kwargs, self._module)
            graph = self._find(call) or self._export(call)
        finally:
            self._early = None
        if graph.effects or graph.captured.left:
            raise CaptureError("the forward sets attributes of its modules")
        return graph.captured, call.leaves

    def give(self, args: tuple[Any, ...], captured: Captured, dynamic: Sizes) -> None:
        """Has calls like this one run on a graph that was made otherwise than by a capture of the module."""
        call = Call.of(args, {}, self._module)
        graph = CapturedGraph(captured, self._module, call.leaves, dynamic, None, [])
        self._graphs.setdefault(call.signature, []).append(graph)

    def _find(self, call: Call) -> CapturedGraph | None:
        graphs = self._graphs.get(call.signature)
        if graphs is None:
            return None
        self._graphs.move_to_end(call.signature)
        for graph in graphs:
            if graph.refusal(call, self._module) is None:
                return graph
        return None

    def _is_refused_otherwise(self, graph: CapturedGraph, call: Call) -> bool:
        """Whether autograd may refuse a write of this call's that it did not refuse when the graph was made: what wants
        a gradient now wanted none then.
        """
        recorded = graph.captured.recorded
        if recorded is None or not torch.is_grad_enabled():
            return False
        info = PostExportProcessedModelInfo.build(graph.captured, self._tensors(graph.captured), call.leaves, True)
        return not set(info.onnx_graph_input_names_require_grad) <= set(recorded)

    def _export(self, call: Call, instead: CapturedGraph | None = None) -> CapturedGraph:
        """A new graph for the call; `instead`: one that it takes the place of, as it holds for more calls."""
        reason, dynamic = self._plan_export(call, leaf_names(self._module, call.args, call.kwargs))
        if instead is not None:
            reason = "a tensor wants a gradient that wanted none"
        if torch.is_grad_enabled():
            self._early = _C.EarlyAccumulators([p for _, p in named_parameters(self._module)])
        start = time.perf_counter()
        hooked = not self._own_hooks and any(hook_tables(self._module))  # an entry is of calls with their hooks
        key = self._disk.key(call.leaves, call.shape, dynamic) if self._disk and not hooked else None
        found = self._disk.load(key, call.leaves, call.shape.spec) if self._disk and key else None
        if found is not None:
            captured, dynamic, roots, effects = found
            reason += ", from the disk cache"
        else:
            captured, dynamic, roots, effects = self._captured_within_stack(call, dynamic)
            self._refuse_counters(effects)
        if (text := given_elsewhere(call, roots)) is not None:
            raise CaptureError(f"the forward is given an object that it also reaches on another way: {text}")
        seconds = time.perf_counter() - start
        if captured.changed_attributes:
            names = ", ".join(captured.changed_attributes)
            raise ChangedValueError(f"the forward changes tensors of its modules, which a graph cannot repeat: {names}")
        if self._disk and key and found is None:
            self._disk.store(key, captured, dynamic, roots, effects)
        inputs = dict(captured.user_inputs)
        axes = tuple(f"{inputs.get(i, i)}[{axis}]" for i, axis in sorted(dynamic))
        self.exports.append(Export(reason, seconds, axes, tuple(captured.specialized), found is not None))
        _LOGGER.info("export %d of %s: %s (%.2f s)", len(self.exports), type(self._module).__name__, reason, seconds)
        graph = CapturedGraph(
            captured,
            self._module,
            call.leaves,
            dynamic,
            key if found else None,
            roots,
            effects,
        )
        graphs = self._graphs.setdefault(call.signature, [])
        graphs[:] = [one for one in graphs if one is not instead] + [graph]
        self._bound()
        return graph

    def _refuse_counters(self, effects: Sequence[Effect]) -> None:
        """What a forward leaves behind at its first call may stay; what changes again is likely to change for ever."""
        again = [effect.text for effect in effects if effect.text in self._left_behind]
        if again:
            names = ", ".join(again)
            raise ChangedValueError(f"the forward changes Python values, which a graph cannot repeat: {names}")
        self._left_behind.update(effect.text for effect in effects)

    def _captured_within_stack(self, call: Call, dynamic: Sizes) -> tuple[Captured, Sizes, Roots, list[Effect]]:
        """`_captured`, which leaves torch's state of the thread as it was where Python's stack comes to its end, too.

        There `with` blocks of torch's are left without their `__exit__`. What they switch off, gradients for one, stays
        off until what the error holds of them is gone, and then becomes what it was when they began.
        """
        thread = _C.ThreadState()
        try:
            return self._captured(call, dynamic)
        except CaptureError as error:
            if not _ran_out_of_stack(error):
                raise
            text = str(error)
        gc.collect()
        thread.restore()
        raise CaptureError(text)

    @leaves_nothing
    def _captured(self, call: Call, dynamic: Sizes) -> tuple[Captured, Sizes, Roots, list[Effect]]:
        """A capture of the call, the sizes that are symbolic in it, what it depends on, and what it leaves behind."""
        vouched = vouched_ids(self._options.vouched)
        audit = Audit(self._module, call.leaves, vouched, self._own_hooks, call.given)
        with audit.until_kept():
            captured, dynamic = self._attempts.capture(call, dynamic, self._graphs.get(call.signature, ()), audit)
            if any(kind == "constant" for _, kind, _ in captured.mutations):
                raise CaptureError("the forward writes into a tensor that lies outside of the module")
            roots = [*audit.conditions(), *_no_errors(captured)]
            if (lost := lost_effect(audit.effects, roots, call)) is not None:
                raise CaptureError(f"the forward changes Python values, which a graph cannot repeat: {lost}")
            _set_apart_from_arrays(captured, audit)
            captured.repeats = audit.read_in_regions()
        return captured, dynamic, roots, audit.effects

    def _plan_export(self, call: Call, names: Sequence[str]) -> tuple[str, Sizes]:
        """Why an export is needed, and the sizes it should keep symbolic: those that were seen to change."""
        signature, leaves = call.signature, call.leaves
        graphs = self._graphs.get(signature, [])
        if not graphs:
            if not self._graphs:
                return "first call", frozenset()
            last = next(reversed(self._graphs))
            reason = "; ".join(signature.differences(last, names)) or "a new signature"
            if sum(map(signature.same_but_for_numbers, self._graphs)) >= _ARGUMENT_VALUES:
                raise CaptureError(f"{reason}, too often for a graph each; a tensor may change without one")
            return reason, frozenset()
        refusal = graphs[-1].refusal(call, self._module, names)
        if refusal is not None and refusal.value is not None:
            self._value_changes[refusal.value] += 1
            if self._value_changes[refusal.value] > _VALUE_CHANGES:
                advice = "a tensor (a buffer, an argument) may change without one"
                raise CaptureError(f"{refusal.reason}, too often for a graph each; {advice}")
        seen: set[tuple[int, int]] = set()
        for graph in graphs:
            seen |= graph.dynamic
            for i in graph.tensor_leaves:
                sizes = zip(leaves[i].shape, graph.shapes[i], strict=True)  # type: ignore[arg-type]
                seen |= {(i, axis) for axis, (new, old) in enumerate(sizes) if new != old}
        dynamic = frozenset((i, axis) for i, axis in seen if leaves[i].shape[axis] > 0)  # a graph has no empty sizes
        return refusal.reason if refusal else "a new size", dynamic

    def _bound(self) -> None:
        """Drops the least recently used signatures, and the oldest graphs of the present one, beyond the limit."""
        if sum(map(len, self._graphs.values())) > self._options.cache_size:
            self._keep_fast_calls([])
        while sum(map(len, self._graphs.values())) > self._options.cache_size:
            if len(self._graphs) > 1:
                self._graphs.popitem(last=False)
            else:
                next(iter(self._graphs.values())).pop(0)

    def _keep_fast_calls(self, fast_calls: list[_C.FastCall]) -> None:
        """Keeps the first few; what the others ran stays counted."""
        self.fast_calls = fast_calls[:_FAST_CALLS]
        for transition in self.transitions():
            for fast in [f for f in transition.fast_calls if f not in self.fast_calls]:
                transition.fast_calls.remove(fast)
                transition.slow_runs += fast.runs

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _tensors(self, captured: Captured) -> dict[str, torch.Tensor]:
        named = dict(named_tensors(self._module, again=True))
        return {**{n: named[n] for n in (*captured.parameters, *captured.buffers)}, **captured.constants}

    def _session(self, graph: CapturedGraph, call: Call) -> ReadySession:
        captured, leaves = graph.captured, call.leaves
        tensors = self._tensors(captured)
        grad = torch.is_grad_enabled()
        info = PostExportProcessedModelInfo.build(captured, tensors, leaves, grad)
        wanted = tuple(info.onnx_graph_input_names_require_grad)
        if self._post_process is not None:
            info = self._post_process(info)
        trained = tuple(info.onnx_graph_input_names_require_grad)
        device = str(run_device(t.device for t in info.construct_inputs(leaves)))
        mode = "training" if wanted else "inference"
        key = (mode, wanted, device)
        transition = graph.sessions.get(key)
        if transition is None:
            order = result_order(captured, wanted) if wanted else ResultOrder()
            if inner := inner_views(captured, order):
                names = ", ".join(map(repr, inner))
                raise CaptureError(f"a result is computed from {names}, a result that is a view of another tensor")
            if wanted and self._options.outputs == "loss":
                info = info.loss_only()
            session = self._builder.build(info, mode, trained, device, leaves)
            if self._on_session is not None:
                self._on_session(session, self.exports[-1].reason if self.exports else "")
            transition = graph.sessions[key] = ReadySession(info, session, mode, self._early)
            if len(wanted) > 1 and trained == wanted:
                session.order_hooks(hook_order(captured, wanted))
            places = order.renamed({name: i for i, name in enumerate(session.output_names)})
            session.order_results(places.pairs, places.sequence)
            asked = self._asker(call)
            if wanted and self._post_process is None:
                transition.derivatives = self._builder.derivatives(info, trained, device, leaves)
            if wanted and self._options.fallback != "error":
                self._allow_higher_order(transition, call, asked)
            if wanted and self._post_process is None and self._options.outputs == "lazy":
                build = functools.partial(
                    self._builder.build, mode=mode, wanted=trained, device=device, leaves=leaves, is_quick=True
                )
                sizes = info.symbol_values(leaves)
                transition.quick, transition.late = add_late_outputs(info, session, sizes, build)
            if wanted and UntilBackward.is_needed(captured):
                same = _unchanged(transition)
                info.until_backward = UntilBackward(captured, info.data_accessor, same, asked)
        else:
            transition.info.buffer_for_ort_runs = info.buffer_for_ort_runs
        return transition

    def _asker(self, call: Call) -> Callable[[str], None]:
        """Sends later calls like this one to PyTorch, because their gradients are what it is called with."""
        kind = (call.signature, call.wanting)
        manager = weakref.ref(self)

        def asked(reason: str) -> None:
            owner = manager()
            if owner is None or kind in owner._higher_order:
                return
            owner._higher_order[kind] = reason
            owner._keep_fast_calls([])
            name = type(owner._module).__name__
            warnings.warn(f"calls of {name} run in PyTorch, not in ORTModule's engine: their {reason}", stacklevel=3)

        return asked

    def _allow_higher_order(self, transition: ReadySession, call: Call, asked: Callable[[str], None]) -> None:
        info, session = transition.info, transition.session
        counted = self._options.dropout == "fast"
        higher = HigherOrder(self._module, info, call, counted, asked, self._own_hooks, transition.derivatives)
        given = [i for i, name in enumerate(info.onnx_graph_input_names) if name in info.data_accessor]
        session.differentiate_again(given, higher.repeat)


def _set_apart_from_arrays(captured: Captured, audit: Audit) -> None:
    """Copies constants that the forward has made on the memory of an array, as `torch.from_numpy` does: the graph holds
    for the numbers that were in it, in whichever array they are.
    """
    for name, tensor in captured.constants.items():
        if not tensor.untyped_storage().resizable() and not audit.knows(tensor):
            captured.constants[name] = tensor.detach().clone()


def _ran_out_of_stack(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, RecursionError):
        error = error.__cause__ or error.__context__
    return error is not None


def _no_errors(captured: Captured) -> Roots:
    """The condition that what the forward warns of is no error, which would end the call in its midst."""
    if not captured.messages:
        return []
    raises = functools.partial(raising, captured.messages)
    if raises():
        raise CaptureError("the forward warns of what a filter of warnings makes an error")
    return [("whether a warning is an error", QueryCondition(raises), raises)]


def _unchanged(transition: ReadySession) -> Callable[[], bool]:
    """Whether a native pattern of the session's tells that what its graph depends on is as it was."""
    held = weakref.ref(transition)

    def unchanged() -> bool:
        session = held()
        return session is not None and any(fast.holds() for fast in session.fast_calls)

    return unchanged


def _gaining_a_history(captured: Captured, session: _C.Session) -> list[str]:
    """The written inputs that autograd would give a history; those that it may, where the trace recorded none."""
    names = session.written_with_history
    return [name for name in names if not captured.hook_order or name in captured.histories]

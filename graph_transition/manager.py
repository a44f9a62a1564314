"""GraphTransitionManager: finds or makes the graph for a call.

States of a graph: captured -> post-processed -> session built. A call walks only the part of that way that is
missing. Graphs are kept per signature; among those of one signature the first whose sizes fit is used, a static one
before dynamic ones, so that A -> B -> A exports twice and any third size not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import _C
from ..capture import Captured, capture, leaf_names
from ..capture.compat import is_undecided
from ..capture.graph import run_device
from ..capture.reads import holder_of, holds
from ..capture.settings import answers
from ..errors import CaptureError, ChangedValueError, ORTModuleError
from ..node_dump import NodeDump
from ..options import DebugOptions, Options
from ..report import Export, SessionReport
from .disk_cache import DiskCache
from .disk_key import DiskKey
from .examples import larger_example
from .fast_call import make_fast_call
from .higher_order import REASON, HigherOrder
from .info import PostExportProcessedModelInfo
from .scope import ScopeRead, scope_reads
from .signature import CallSignature, flatten_call, signature_of

__all__ = ["GraphTransitionManager", "Transition", "is_unexpected"]

_LOGGER = logging.getLogger("ortmodule")
# A graph costs a second. A Python value that changes from step to step (a schedule) is better read in PyTorch.
_VALUE_CHANGES = 8
# The same of numbers among the arguments, a few of which may come again and again.
_ARGUMENT_VALUES = 16
# Call patterns that are tried before the signature is computed: train and eval, one step's two inputs, ...
_FAST_CALLS = 4
# Different answers to the branches of one signature, each with graphs of its own; with more, PyTorch runs them better.
_MOST_ANSWERS = 8
# Graphs of one signature whose forward cannot be captured but for one size at a time.
_MOST_SIZES = 4
# Stages whose files have the names that ONNX Runtime training gives them.
_SAVED_AS = {"imported": "torch_exported", "planned": "execution_model"}


def is_flag(leaf: Any) -> bool:
    """Whether a call's leaf is one bool, as a tensor in host memory: a graph per value is no more than two."""
    flag = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool and leaf.numel() == 1
    return flag and leaf.device.type == "cpu"


def flag_value(leaf: torch.Tensor) -> Any:
    """The flag's value, nested as the tensor is."""
    return leaf.tolist()


def is_unexpected(error: ORTModuleError) -> bool:
    """Whether a run ended because the data are not what its graph was captured for: PyTorch runs such a call."""
    return str(error).startswith("[Expect]")


def _wanting(leaves: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """Why a graph does not hold for a call; `value`: the Python value that is another one."""

    reason: str
    value: str | None = None


class _Graph:
    """One captured graph and the sessions made from it, by the set of inputs that want a gradient."""

    def __init__(
        self,
        captured: Captured,
        module: torch.nn.Module,
        leaves: Sequence[Any],
        dynamic: frozenset[tuple[int, int]],
        loaded: DiskKey | None,
        scope: Sequence[ScopeRead],
    ) -> None:
        self.captured = captured
        self.scope = scope
        self.loaded = loaded  # the key under which it was found in the cache on disk
        self.dynamic = dynamic
        self.shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensor_leaves = [i for i in tensors if i not in captured.flags]
        self.answers = answers(captured.settings, leaves, module)
        asked = captured.branches or any(node.op_type == "Expect" for node in captured.model.graph.node)
        self.branching = bool(asked)  # an export that cannot ask about data fails
        self.sessions: dict[tuple[Any, ...], Transition] = {}

    def refusal(self, leaves: Sequence[Any], module: torch.nn.Module, names: Sequence[str] = ()) -> _Refusal | None:
        """Why this graph does not hold for the call; None when it does."""
        for i in self.tensor_leaves:
            shape = leaves[i].shape
            if shape == self.shapes[i]:
                continue
            for axis, (new, old) in enumerate(zip(shape, self.shapes[i], strict=True)):  # type: ignore[arg-type]
                if new != old and (i, axis) not in self.dynamic:
                    name = names[i] if names else i
                    return _Refusal(f"size {axis} of input '{name}' changed from {old} to {new}")
        for i, value in self.captured.flags.items():
            if flag_value(leaves[i]) != value:
                name = names[i] if names else i
                return _Refusal(f"the value of input '{name}', on which the forward branches, changed")
        for owner, path, value in self.captured.attributes:
            try:
                holder, name = holder_of(module, owner, path)
                now = getattr(holder, name, None)
            except AttributeError:
                now = None
            if not holds(now, value):
                what = f"the attribute {owner + '.' if owner else ''}{path}"
                return _Refusal(f"{what} changed from {value!r} to {now!r}", what)
        for read in self.scope:
            if not read.holds():
                return _Refusal(f"{read.text} changed from {read.value!r} to {read.now()!r}", read.text)
        for setting, answer in answers(self.answers, leaves, module).items():
            if answer != self.answers[setting]:
                return _Refusal(f"the forward asks for the {setting}, which changed")
        if self.dynamic or self.captured.branches:
            failed = self.captured.check([leaves[i] for i in self.tensor_leaves])
            if failed is not None:
                return _Refusal(f"the guard `{failed}` does not hold")
        return None


@dataclasses.dataclass
class Transition:
    """A session, ready to run, with the information that leads from a call to it and back."""

    info: PostExportProcessedModelInfo
    session: _C.Session
    mode: str
    slow_runs: int = 0
    fast_calls: list[_C.FastCall] = dataclasses.field(default_factory=list)

    @property
    def runs(self) -> int:
        """How often the session ran."""
        return self.slow_runs + sum(f.runs for f in self.fast_calls)

    def run(self, leaves: Sequence[Any]) -> Any:
        """The module's result for a call's flat leaves."""
        self.slow_runs += 1
        return self.info.restore_outputs(self.session.run(self.info.construct_inputs(leaves)), leaves)

    def report(self) -> SessionReport:
        s = self.session.statistics()
        types = []
        for value in self.info.post_export_processed_model.graph.input:
            if value.name in self.info.data_accessor:
                dims = (d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim)
                types.append(f"{value.name}[{', '.join(dims)}]")
        return SessionReport(
            mode=self.mode,
            inputs=tuple(types),
            forward_nodes=s["forward_nodes"],
            backward_nodes=s["backward_nodes"],
            aten_nodes=dict(s["aten_nodes"]),
            gradients=s["gradients"],
            seconds={**self.info.captured.seconds, **s["seconds"]},
            peak_bytes=max(s["peak_forward_bytes"], s["peak_backward_bytes"]),
            saved_bytes=s["saved_bytes"],
            arena_bytes=s["arena_bytes"],
            runs=self.runs,
            recomputed_nodes=s["recomputed_nodes"],
            fused_kernels=s["fused_kernels"],
            fused_nodes=s["fused_nodes"],
        )


class GraphTransitionManager:
    """Owns the graphs of one module."""

    def __init__(self, module: torch.nn.Module, options: Options, debug: DebugOptions) -> None:
        self._module = module
        self._options = options
        self._debug = debug
        self._disk = DiskCache(module, options) if options.cache_dir else None
        self._graphs: OrderedDict[CallSignature, list[_Graph]] = OrderedDict()
        self.exports: list[Export] = []
        self.fast_calls: list[_C.FastCall] = []
        self._sessions = 0
        self._one_size: set[CallSignature] = set()  # whose forward was captured for its present sizes alone
        self._value_changes: Counter[str] = Counter()
        # Calls whose gradients were differentiated again.
        self._higher_order: set[tuple[CallSignature, tuple[bool, ...]]] = set()

    def transitions(self) -> list[Transition]:
        """Every session that is kept."""
        return [t for graphs in self._graphs.values() for g in graphs for t in g.sessions.values()]

    def release_edges(self) -> None:
        """Lets the sessions go of what they keep of autograd between steps."""
        for transition in self.transitions():
            transition.session.release_edges()

    def signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSignature:
        """The signature of a call. Raises CaptureError for an argument that has none."""
        return signature_of(*flatten_call(args, kwargs), self._module)

    @property
    def higher_order(self) -> bool:
        """Whether there are calls that PyTorch runs because their gradients are differentiated again."""
        return bool(self._higher_order)

    def is_higher_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this is one of them."""
        if not self._higher_order or not torch.is_grad_enabled():
            return False
        try:
            leaves, spec = flatten_call(args, kwargs)
            return (signature_of(leaves, spec, self._module), _wanting(leaves)) in self._higher_order
        except ORTModuleError:  # an argument that has no signature
            return False

    def use_cache_or_reconstruct_post_processed_model(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Transition, list[Any]]:
        """The session for this call, made if need be, and the call's flat leaves.

        Raises:
            CaptureError: the module cannot be captured.
            ORTModuleError: the captured graph cannot be compiled.
        """
        leaves, spec = flatten_call(args, kwargs)
        signature = signature_of(leaves, spec, self._module)
        graph = self._find(signature, leaves)
        if graph is None:
            graph = self._export(signature, args, kwargs, leaves, spec)
        try:
            transition = self._session(graph, signature, spec, leaves)
        except ORTModuleError as error:
            if graph.loaded is None or self._disk is None:
                raise
            _LOGGER.warning("a graph from the cache cannot be compiled and is made anew: %s", error)
            self._disk.discard(graph.loaded)
            self._graphs[signature].remove(graph)
            graph = self._export(signature, args, kwargs, leaves, spec)
            transition = self._session(graph, signature, spec, leaves)
        fast = make_fast_call(self._module, transition, graph.dynamic, graph.scope, args, kwargs)
        if fast is not None:
            transition.fast_calls.append(fast)
            self._keep_fast_calls([fast, *self.fast_calls])
        return transition, leaves

    # -- graphs -----------------------------------------------------------------------------------------------------

    def _find(self, signature: CallSignature, leaves: list[Any]) -> _Graph | None:
        graphs = self._graphs.get(signature)
        if graphs is None:
            return None
        self._graphs.move_to_end(signature)
        for graph in graphs:
            if graph.refusal(leaves, self._module) is None:
                return graph
        return None

    def _export(
        self,
        signature: CallSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        spec: pytree.TreeSpec,
    ) -> _Graph:
        reason, dynamic = self._plan_export(signature, leaves, leaf_names(self._module, args, kwargs))
        start = time.perf_counter()
        scope = scope_reads(self._module)
        key = self._disk.key(leaves, spec, dynamic) if self._disk else None
        found = self._disk.load(key, leaves, spec) if self._disk and key else None
        if found is not None:
            captured, dynamic = found
            reason += ", from the disk cache"
        else:
            try:
                captured, dynamic = self._capture_any_sizes(signature, args, kwargs, leaves, dynamic)
            finally:
                changed = [read for read in scope if not read.holds()]
                for read in changed:
                    read.restore()
            if changed:
                names = ", ".join(read.text for read in changed)
                raise ChangedValueError(f"the forward changes Python values, which a graph cannot repeat: {names}")
        seconds = time.perf_counter() - start
        if captured.changed_attributes:
            names = ", ".join(captured.changed_attributes)
            raise ChangedValueError(f"the forward changes Python attributes, which a graph cannot repeat: {names}")
        if self._disk and key and found is None:
            self._disk.store(key, captured, dynamic)
        inputs = dict(captured.user_inputs)
        axes = tuple(f"{inputs.get(i, i)}[{axis}]" for i, axis in sorted(dynamic))
        self.exports.append(Export(reason, seconds, axes, tuple(captured.specialized), found is not None))
        _LOGGER.info("export %d of %s: %s (%.2f s)", len(self.exports), type(self._module).__name__, reason, seconds)
        graph = _Graph(captured, self._module, leaves, frozenset(dynamic), key if found else None, scope)
        self._graphs.setdefault(signature, []).append(graph)
        self._bound()
        return graph

    def _capture_any_sizes(
        self,
        signature: CallSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        dynamic: set[tuple[int, int]],
    ) -> tuple[Captured, set[tuple[int, int]]]:
        """Captures with these sizes symbolic, or, where the forward allows that not at all, for the present ones."""
        ones = {(i, axis) for i, axis in dynamic if leaves[i].shape[axis] == 1}
        if signature not in self._one_size:
            with contextlib.suppress(CaptureError):
                if ones:
                    return self._capture_larger(self._graphs[signature][-1].shapes, args, kwargs, leaves, dynamic)
            dynamic = dynamic - ones
            try:
                return self._capture_or_bake(signature, args, kwargs, leaves, dynamic)
            except CaptureError as error:
                if not dynamic:
                    raise
                try:
                    captured = self._capture_or_bake(signature, args, kwargs, leaves, set())
                except CaptureError:
                    raise error from None
                self._one_size.add(signature)
                return captured
        if len(self._graphs.get(signature, ())) >= _MOST_SIZES:
            raise CaptureError(f"the forward cannot be captured for varying sizes; it has {_MOST_SIZES} graphs already")
        return self._capture_or_bake(signature, args, kwargs, leaves, set())

    def _capture_larger(
        self,
        earlier: Sequence[tuple[int, ...] | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        dynamic: set[tuple[int, int]],
    ) -> tuple[Captured, set[tuple[int, int]]]:
        """Captures a call some of whose varying sizes are 1, as one in which none is."""
        example = larger_example(leaves, earlier, dynamic)
        if example is None:
            raise CaptureError("no call is known in which every varying size is larger than 1")
        args, kwargs = pytree.tree_unflatten(example, pytree.tree_structure((args, kwargs)))
        captured, dynamic = self._capture(args, kwargs, example, dynamic)
        failed = captured.check([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        if failed is not None:
            raise CaptureError(f"the guard `{failed}` does not hold")
        return captured, dynamic

    def _capture_or_bake(
        self,
        signature: CallSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        dynamic: set[tuple[int, int]],
    ) -> tuple[Captured, set[tuple[int, int]]]:
        """Captures; where the forward branches on a flag that it is given as a tensor, for the flag's present value,
        and where it branches on what its inputs or the module's buffers hold, for the present answers.
        """
        graphs = self._graphs.get(signature, ())
        ways = len({tuple((b.line, b.answer) for b in g.captured.branches) for g in graphs if g.captured.branches})
        if ways >= _MOST_ANSWERS:
            raise CaptureError(f"the forward branches on the values of its inputs, in more than {ways} ways")
        if any(g.branching for g in graphs):
            return self._capture(args, kwargs, leaves, dynamic, branching=True)
        try:
            return self._capture(args, kwargs, leaves, dynamic)
        except CaptureError as error:
            flags = {i: flag_value(leaf) for i, leaf in enumerate(leaves) if is_flag(leaf)}
            with contextlib.suppress(CaptureError):
                if flags:
                    return capture(self._module, args, kwargs, dynamic_dims=dynamic or None, flags=flags), dynamic
            with contextlib.suppress(CaptureError):
                if is_undecided(error):
                    return self._capture(args, kwargs, leaves, dynamic, branching=True)
            raise

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        dynamic: set[tuple[int, int]],
        branching: bool = False,
    ) -> tuple[Captured, set[tuple[int, int]]]:
        """Captures with these sizes symbolic; returns which ones are.

        Where one size changes, the batch's or the sequence's, the other will: the first two axes of every tensor are
        kept symbolic with it where the module allows that.
        """
        others = {
            (i, axis)
            for i, leaf in enumerate(leaves)
            if dynamic and isinstance(leaf, torch.Tensor)
            for axis in range(min(2, leaf.dim()))
            if leaf.shape[axis] > 1
        }
        attempt = functools.partial(capture, self._module, args, kwargs, branching=branching)
        if not others - dynamic:
            return attempt(dynamic_dims=dynamic or None), dynamic
        try:
            captured = attempt(dynamic_dims=dynamic, optional_dims=others)
        except CaptureError:
            return attempt(dynamic_dims=dynamic), dynamic
        return captured, (dynamic | others) - captured.fixed

    def _plan_export(
        self, signature: CallSignature, leaves: list[Any], names: Sequence[str]
    ) -> tuple[str, set[tuple[int, int]]]:
        """Why an export is needed, and the sizes it should keep symbolic: those that were seen to change."""
        graphs = self._graphs.get(signature, [])
        if not graphs:
            if not self._graphs:
                return "first call", set()
            last = next(reversed(self._graphs))
            reason = "; ".join(signature.differences(last, names)) or "a new signature"
            if sum(map(signature.same_but_for_numbers, self._graphs)) >= _ARGUMENT_VALUES:
                raise CaptureError(f"{reason}, too often for a graph each; a tensor may change without one")
            return reason, set()
        refusal = graphs[-1].refusal(leaves, self._module, names)
        if refusal is not None and refusal.value is not None:
            self._value_changes[refusal.value] += 1
            if self._value_changes[refusal.value] > _VALUE_CHANGES:
                advice = "a tensor (a buffer, an argument) may change without one"
                raise CaptureError(f"{refusal.reason}, too often for a graph each; {advice}")
        dynamic: set[tuple[int, int]] = set()
        for graph in graphs:
            dynamic |= graph.dynamic
            for i in graph.tensor_leaves:
                sizes = zip(leaves[i].shape, graph.shapes[i], strict=True)  # type: ignore[arg-type]
                dynamic |= {(i, axis) for axis, (new, old) in enumerate(sizes) if new != old}
        dynamic = {(i, axis) for i, axis in dynamic if leaves[i].shape[axis] > 0}  # a graph has no empty sizes
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
        named: dict[str, torch.Tensor] = dict(self._module.named_parameters(remove_duplicate=False))
        named.update(self._module.named_buffers(remove_duplicate=False))
        return {**{n: named[n] for n in (*captured.parameters, *captured.buffers)}, **captured.constants}

    def _session(self, graph: _Graph, signature: CallSignature, spec: pytree.TreeSpec, leaves: list[Any]) -> Transition:
        captured = graph.captured
        tensors = self._tensors(captured)
        grad = torch.is_grad_enabled()
        info = PostExportProcessedModelInfo.build(captured, tensors, leaves, grad)
        wanted = tuple(info.onnx_graph_input_names_require_grad)
        device = str(run_device(t.device for t in info.construct_inputs(leaves)))
        mode = "training" if wanted else "inference"
        key = (mode, wanted, device)
        transition = graph.sessions.get(key)
        if transition is None:
            if wanted and self._options.outputs == "loss":
                info = info.loss_only()
            session = self._build(info, mode, wanted, device, leaves)
            transition = graph.sessions[key] = Transition(info, session, mode)
            if wanted and self._options.fallback != "error":
                self._allow_higher_order(transition, signature, spec, leaves)
        else:
            transition.info.buffer_for_ort_runs = info.buffer_for_ort_runs
        return transition

    def _allow_higher_order(
        self, transition: Transition, signature: CallSignature, spec: pytree.TreeSpec, leaves: list[Any]
    ) -> None:
        kind = (signature, _wanting(leaves))
        manager = weakref.ref(self)

        def asked() -> None:
            owner = manager()
            if owner is None or kind in owner._higher_order:
                return
            owner._higher_order.add(kind)
            owner._keep_fast_calls([])
            name = type(owner._module).__name__
            warnings.warn(f"calls of {name} run in PyTorch, not in ORTModule's engine: their {REASON}", stacklevel=3)

        info, session = transition.info, transition.session
        higher = HigherOrder(self._module, info, signature, spec, leaves, asked)
        given = [i for i, name in enumerate(info.onnx_graph_input_names) if name in info.data_accessor]
        session.differentiate_again(given, higher.gradients)

    def _build(
        self, info: PostExportProcessedModelInfo, mode: str, wanted: Sequence[str], device: str, leaves: Sequence[Any]
    ) -> _C.Session:
        index = {name: i for i, name in enumerate(info.onnx_graph_input_names)}
        outputs = {o.name: i for i, o in enumerate(info.post_export_processed_model.graph.output)}
        users = {leaf: name for name, leaf in info.data_accessor.items()}
        mutations = []
        for output, kind, target in info.captured.mutations:
            name = users[target] if kind == "input" else target  # type: ignore[index]
            mutations.append((outputs[output], index[name]))  # type: ignore[index]
        options = {
            "device": device,
            "dropout": self._options.dropout,
            "matmul": self._options.matmul,
            "fusion": self._options.fusion,
            "memory_budget": -1.0 if self._options.memory_budget == "all" else self._options.memory_budget,
            "weights": list(info.captured.parameters),
            "sizes": info.symbol_values(leaves),
            "keep_stages": self._debug.save_onnx,
            "mutations": mutations,
        }
        session = _C.Session(info.post_export_processed_model.SerializeToString(), mode, list(wanted), options)
        self._log_stages(info, session, mode)
        if self._debug.save_onnx:
            self._save_stages(session, mode if self._module.training else "inference")
        if self._debug.dump_nodes:
            prefix = self._debug.onnx_prefix or type(self._module).__name__
            path = Path(self._debug.save_path) / f"{prefix}_nodes_{self._sessions:02d}_{mode}.txt"
            self._sessions += 1
            NodeDump(session, path, self._debug.dump_nodes)
        return session

    def _log_stages(self, info: PostExportProcessedModelInfo, session: _C.Session, mode: str) -> None:
        if not _LOGGER.isEnabledFor(logging.INFO):
            return
        seconds = {**info.captured.seconds, **session.statistics()["seconds"]}
        stages = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in seconds.items())
        total = sum(seconds.values())
        _LOGGER.info("%s session of %s in %.2f s: %s", mode, type(self._module).__name__, total, stages)

    def _save_stages(self, session: _C.Session, mode: str) -> None:
        stages = session.stage_names()
        names = dict(_SAVED_AS)
        if "optimized" not in stages:  # without a gradient
            names["optimized_pre_grad"] = "optimized"
        for stage in stages:
            name = names.get(stage, stage)
            path = Path(self._debug.save_path) / f"{self._debug.onnx_prefix}_{name}_{mode}.onnx"
            with open(path, "wb") as file:
                file.write(session.stage_model(stage))
        path = Path(self._debug.save_path) / f"{self._debug.onnx_prefix}_portable_{mode}.onnx"
        try:
            model = session.stage_model("resolved", portable=True)
        except ORTModuleError as error:
            _LOGGER.warning("the %s graph has no portable form: %s", mode, error)
            return
        with open(path, "wb") as file:
            file.write(model)

"""`capture` itself: runs the export, names the graph's inputs and outputs, and converts.

The order of graph inputs is user inputs, parameters, buffers, constants; of graph outputs what several of the user's
tensors are views of, the user's tensors (each once), then what the forward wrote into buffers, parameters and inputs.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import CaptureError, ORTModuleError, UndecidedError
from . import guards, torch_private
from .attempts import Attempt, Failures, Sizes, first_capture, from_one_then_two
from .captured import Captured, Trace
from .containers.flattening import flatten_call
from .convert.converter import Converter
from .convert.onnx_graph import GraphBuilder, Value
from .leaf_names import first_names, leaf_names
from .leftovers import leaves_nothing
from .output_refs import GivenChange, OutputRef, SideOutput
from .result_views import ViewStep, symbols_of, view_steps
from .sizes import SizePrinter
from .trace.export import Exported, TraceAudit, export_module
from .trace.patches.imports import with_modules_loaded
from .trace.patches.sizes import unit_sizes
from .trace.tracing import LOCK, TracingAnswer

__all__ = ["capture", "capture_for_call", "capture_once"]

_PREFIX = "module."
_MOST_WRITTEN_OUT = 16  # elements of a tensor that the forward makes of numbers
_KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}


@leaves_nothing
def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_dims: Iterable[tuple[int, int]] | None = None,
    keep_trace: bool = False,
    optional_dims: Iterable[tuple[int, int]] = (),
    flags: Mapping[int, Any] | None = None,
    branching: bool = False,
    audit: TraceAudit | None = None,
) -> Captured:
    """Captures `module(*args, **kwargs)` as an ONNX graph, in the module's present mode and the caller's autocast.

    The module, its buffers, its gradients and every random generator are left as they were.

    Args:
        module: the module to trace.
        args, kwargs: an example call; tensors may have any dtype and device.
        dynamic_dims: (index among the flat leaves of (args, kwargs), axis) of the sizes to keep symbolic. None: static.
        keep_trace: whether the result's `trace` is kept.
        optional_dims: further ones, to be kept symbolic if the module does not fix them.
        flags: by flat leaf index, the value of each tensor on which the forward branches; the graph holds for it only.
        branching: whether a branch on what inputs and buffers hold goes the way of this call; the graph then holds for
            calls with the same answers only.
        audit: hears of the forward, of each trace of it anew.

    Raises:
        CaptureError: the module cannot be one graph; the error says why, and at which line of the user's code.
        SlowCaptureError: not in reasonable time with these sizes symbolic.
    """
    dynamic = frozenset(dynamic_dims or ())
    attempt = Attempt("open", dynamic, frozenset(optional_dims) - dynamic, False, dict(flags or {}), branching)
    attempts = from_one_then_two(attempt)
    return first_capture(attempts, lambda one: capture_once(module, args, kwargs or {}, one, audit, keep_trace))[1]


def capture_for_call(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic_dims: Iterable[tuple[int, int]] | None = None,
    keep_trace: bool = False,
) -> Captured:
    """`capture`, where branches on what inputs and buffers hold go the way of this call if the module has any.

    Raises:
        CaptureError: as `capture`; the reason is that of the capture without such branches.
    """
    failures = Failures()

    def attempts() -> Iterator[Attempt]:
        attempt = Attempt("open", frozenset(dynamic_dims or ()))
        yield from from_one_then_two(attempt)
        if failures.undecided:
            yield from from_one_then_two(dataclasses.replace(attempt, step="branching", branching=True))

    return first_capture(attempts(), lambda one: capture_once(module, args, kwargs, one, None, keep_trace), failures)[1]


def capture_once(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    attempt: Attempt,
    audit: TraceAudit | None = None,
    keep_trace: bool = False,
) -> Captured:
    """One attempt; where the forward asks whether it is traced and cannot be captured as in PyTorch, told that it is.

    Raises what `capture` raises.
    """
    with LOCK:
        tracing = TracingAnswer()
        try:
            return _capture_told(module, args, kwargs, attempt, audit, keep_trace, tracing)
        except CaptureError as error:
            # Sizes from 1 on that fail are tried from 2 on next.
            if not tracing.was_asked or (attempt.from_one and not isinstance(error, UndecidedError)):
                raise
        return _capture_told(module, args, kwargs, attempt, audit, keep_trace, TracingAnswer(is_traced=True))


def _capture_told(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    attempt: Attempt,
    audit: TraceAudit | None,
    keep_trace: bool,
    tracing: TracingAnswer,
) -> Captured:
    """`capture_once` with one answer."""
    call = flatten_call(args, kwargs)
    leaves, in_spec = call.leaves, call.shape.spec
    exported = with_modules_loaded(
        lambda tried: export_module(module, leaves, call.shape, attempt, audit, tracing, tried)
    )
    start = time.perf_counter()
    assembly = _Assembly(module, exported, leaf_names(module, args, kwargs))
    captured = assembly.captured_or_refused(leaves, in_spec, attempt.dynamic, attempt.optional)
    if attempt.from_one and (failed := captured.check([leaves[i] for i in exported.tensor_index])):
        raise CaptureError(f"the guard `{failed}` does not hold for the example")
    captured.branches, captured.messages = exported.branches, exported.messages
    captured.seconds["convert"] = time.perf_counter() - start
    captured.flags = dict(attempt.flags)
    if keep_trace:
        captured.trace = Trace(assembly.program, assembly.sources, assembly.converter.results)
    return captured


class _Assembly:
    """Puts one model together from an exported program."""

    def __init__(self, module: torch.nn.Module, exported: Exported, names: list[str]) -> None:
        self.exported = exported
        self.program = exported.program
        self._leaf_names = names
        self.builder = GraphBuilder(type(module).__name__)
        self.printer = SizePrinter()
        self.converter = Converter(self.builder, self.printer)
        self.canonical = first_names(module)
        self.placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        self.sources: dict[Node, tuple[str, str | int]] = {}
        self.user_inputs: list[tuple[int, str]] = []
        self.named: dict[str, list[str]] = {"parameter": [], "buffer": [], "constant": []}
        self.constants: dict[str, torch.Tensor] = {}
        self.declared: set[str] = set()
        self._memory: dict[int, int] = {}  # numbers of the traced results' storages
        signature = self.program.graph_signature
        kept = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
        # The module's own tensors that are given a new value, perhaps without a look at the old one.
        self.written = {self._name(s.target) for s in signature.output_specs if s.kind in kept and s.target}

    def captured_or_refused(self, *args: Any) -> Captured:
        """`captured`, where anything that has no ONNX form is a reason to run the module in PyTorch."""
        try:
            return self.captured(*args)
        except ORTModuleError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            raise CaptureError(f"the exported program has no ONNX form: {text}") from error

    def captured(
        self, leaves: list[Any], in_spec: pytree.TreeSpec, dynamic: Sizes, optional: Sizes,
    ) -> Captured:  # fmt: skip
        self._inputs()
        self.converter.apart = self._result_bases()
        self.converter.run(self.program.graph)
        outputs, mutations = self._outputs()
        shapes = {self.exported.tensor_index.index(i): self._shape_of(i) for i, _ in self.user_inputs}
        conditions = torch_private.export_guards(self.program)
        conditions += guards.range_conditions(shapes, self.program.range_constraints)
        if self.exported.from_one:
            conditions += unit_sizes.conditions(self.program, shapes, self.printer)
        specialized = []
        for leaf, axis in sorted(dynamic):
            size = self._shape_of(leaf)[axis]
            if isinstance(size, int):
                position = self.exported.tensor_index.index(leaf)
                conditions.append(f"L['tensors'][{position}].size()[{axis}] == {size}")
                specialized.append(
                    f"size {size} of axis {axis} of input '{self._leaf_names[leaf]}' is fixed by the module"
                )
        check = guards.with_branches(guards.compile_check(conditions), self.exported.branches)
        places = zip(self.exported.outputs, outputs, strict=True)
        names = {what: ref.name for (kind, what), ref in places if kind == "value" and ref.kind == "tensor"}
        refs = iter(outputs)
        outputs = _taken(refs, self.exported.out_spec)
        left = [SideOutput(one, name, spec, _taken(refs, spec)) for one, name, spec in self.exported.left_on_modules]
        changes = [
            GivenChange(change.number, change.removed, spec, _taken(refs, spec))
            for change, spec in self.exported.given_changes
        ]
        fixed = frozenset((leaf, axis) for leaf, axis in optional if isinstance(self._shape_of(leaf)[axis], int))
        return Captured(
            self.builder.model, self.user_inputs, self.named["parameter"], self.named["buffer"], self.constants,
            outputs, mutations, in_spec, self.exported.out_spec,
            [(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)],
            self.exported.changed_attributes, self.exported.settings, conditions,
            check, specialized, fixed, self.exported.calls, self.exported.seconds, left=left, given_changes=changes,
            hook_order=self._inputs_of(self.exported.hook_order),
            histories=self._inputs_of(self.exported.histories),
            result_order=self.exported.result_order.renamed(names),
            recorded=None if self.exported.recorded is None else self._inputs_of(self.exported.recorded),
            saved_writes=self._written_inputs(mutations, self._inputs_of(self.exported.saved)),
            saved_left=[name for i in self.exported.saved_left if (name := names.get(i)) is not None],
        )  # fmt: skip

    # -- inputs -----------------------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        specs = list(zip(self.program.graph_signature.input_specs, self.placeholders, strict=True))
        taken = {self._name(spec.target) for spec, _ in specs if spec.kind in _KINDS}
        self.builder.reserve(taken)
        position = 0
        shared: dict[str, Value] = {}
        for spec, node in specs:
            if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
                held = type(self.program.constants.get(spec.target)).__name__
                raise CaptureError(f"the forward uses an object that a graph cannot hold: {spec.target} ({held})")
            if spec.kind is InputKind.USER_INPUT:
                leaf = self.exported.tensor_index[position]
                position += 1
                self.sources[node] = ("input", leaf)
                name = self._leaf_names[leaf]
                value = self._declare(node, f"input.{name}" if name in taken else name)
                self.converter.define(node, value, node.meta["val"].is_floating_point())
                self.user_inputs.append((leaf, value.name))
        for kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            for spec, node in specs:
                if spec.kind is kind:
                    self._named_input(_KINDS[kind], spec.target, node, shared)

    def _named_input(self, kind: str, target: str, node: Node, shared: dict[str, Value]) -> None:
        name = self._name(target)
        self.sources[node] = (kind, name)
        if kind == "constant":
            tensor = self.program.constants[target]
            if (
                target.startswith("lifted_tensor")
                and _is_made_within(node)
                and tensor.numel() <= _MOST_WRITTEN_OUT
                and not tensor.is_complex()
            ):
                self.converter.define(node, self.builder.const(tensor.tolist(), tensor.dtype))
                return
        if name not in shared:
            used = node.users or any(s[1] == name and n.users for n, s in self.sources.items())
            if not used and name not in self.written:
                return
            shared[name] = self._declare(node, name)
            self.named[kind].append(shared[name].name)
            if kind == "constant":
                self.constants[shared[name].name] = self.program.constants[target]
        self.converter.define(node, shared[name], kind == "parameter")

    def _name(self, target: str) -> str:
        """The module's own name of a parameter, buffer or constant; a tied one's first."""
        name = target.removeprefix(_PREFIX)
        return self.canonical.get(name, name)

    def _declare(self, node: Node, name: str) -> Value:
        fake = node.meta["val"]
        return self.builder.input(name, fake.dtype, self.printer.shape(fake))

    def _inputs_of(self, what: Iterable[str | int]) -> list[str]:
        """The graph's inputs among tensors of the module, by name, and of the call, by place."""
        given: dict[Any, str] = dict(self.user_inputs)
        own = {*self.named["parameter"], *self.named["buffer"]}
        names = [given.get(one) if isinstance(one, int) else self.canonical.get(one) for one in what]
        return [name for name in names if name is not None and (name in own or name in given.values())]

    def _written_inputs(self, mutations: list[tuple[str, str, str | int]], names: list[str]) -> list[str]:
        """Those of these graph inputs that the forward writes."""
        given: dict[Any, str] = dict(self.user_inputs)
        written = {given.get(target, target) for _, _, target in mutations}
        return [name for name in names if name in written]

    def _shape_of(self, leaf: int) -> tuple[int | str, ...]:
        users = [n for n, source in self.sources.items() if source == ("input", leaf)]
        return self.printer.shape(users[0].meta["val"])

    # -- outputs ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> tuple[list[OutputRef], list[tuple[str, str, str | int]]]:
        nodes = self.program.graph.output_node().args[0]
        written = dict(self.converter.written)
        results: list[Any] = []
        by_name = {n.name: n for n in self.placeholders}
        targets = {(k, t): n for n, (k, t) in self.sources.items()}
        for spec, node in zip(self.program.graph_signature.output_specs, nodes, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                results.append(node)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                written[by_name[spec.target]] = self.converter.read(node)
            else:
                kind = "buffer" if spec.kind is OutputKind.BUFFER_MUTATION else "parameter"
                written[targets[kind, self._name(spec.target)]] = self.converter.read(node)
        declared = self._shared_bases(results, written)
        outputs = [
            self._output(results[what], written, declared) if kind == "value" else _object_ref(kind, what)
            for kind, what in self.exported.outputs
        ]
        outputs = self._with_views(outputs, results, written, declared)
        self._refuse_parted(outputs, results)
        mutations = []
        for node, value in written.items():
            kind, target = self.sources[node]
            mutations.append((self._graph_output(value, f"{node.name}.new"), kind, target))
        return outputs, mutations

    def _shared_bases(self, results: list[Any], written: dict[Node, Value]) -> dict[Node, OutputRef]:
        """Graph outputs for what several results are views of and is no result itself."""
        views: dict[Node, set[Node]] = {}
        for node in results:
            if isinstance(node, Node):
                base, _ = self._way_to(node, written)
                views.setdefault(self._tensor_of(self.converter.root(base), written), set()).add(node)
        return {
            base: self._tensor_output(base)
            for base, those in views.items()
            if len(those) > 1 and base.op != "placeholder" and isinstance(base.meta.get("val"), torch.Tensor)
        }

    def _result_bases(self) -> frozenset[Node]:
        """What the results are views of, or are themselves."""
        specs = self.program.graph_signature.output_specs
        nodes = zip(specs, self.program.graph.output_node().args[0], strict=True)
        results = [n for spec, n in nodes if spec.kind is OutputKind.USER_OUTPUT and isinstance(n, Node)]
        return frozenset(view_steps(n, self.printer.dim, lambda one: one.op == "placeholder")[0] for n in results)

    def _output(self, node: Any, written: dict[Node, Value], declared: dict[Node, OutputRef]) -> OutputRef:
        if not isinstance(node, Node):
            return OutputRef("constant", value=node)
        base, steps = self._way_to(node, written)
        root = self._tensor_of(self.converter.root(node if steps else base), written)
        if root.op == "placeholder":
            kind, target = self.sources[root]
            if kind == "input":
                return OutputRef("input", flat_index=int(target))
            if kind in ("parameter", "buffer"):
                return OutputRef("input", name=str(target))
            return OutputRef("constant", value=self.program.constants[str(target)])  # the very tensor
        if root not in declared:
            value = self.converter.read(node)
            if isinstance(value, torch.SymInt):
                declared[root] = OutputRef(
                    "size", self._graph_output(self.builder.size(self.printer.dim(value)), node.name)
                )
            else:
                declared[root] = self._tensor_output(node)
        return declared[root]

    def _tensor_output(self, node: Node) -> OutputRef:
        return OutputRef("tensor", self._graph_output(self.converter.read(node), node.name, node.meta.get("val")))

    def _with_views(
        self, outputs: list[OutputRef], results: list[Any], written: dict[Node, Value], declared: dict[Node, OutputRef]
    ) -> list[OutputRef]:
        """The results, those that are views with the way from their base."""
        free = {axis for _, shape in self._input_shapes() for axis in shape if isinstance(axis, str)}
        found = []
        for (kind, what), ref in zip(self.exported.outputs, outputs, strict=True):
            node = results[what] if kind == "value" else None
            if isinstance(node, Node) and ref.kind == "tensor":
                base, steps = self._way_to(node, written)
                base = self._tensor_of(base, written)
                held = declared.get(base) if base.op != "placeholder" else self._given(base)
                if steps and held is not None and held.view is None and symbols_of(steps) <= free:
                    ref = dataclasses.replace(ref, view=(held, tuple(steps)))
            found.append(ref)
        return found

    def _refuse_parted(self, outputs: list[OutputRef], results: list[Any]) -> None:
        """Raises a CaptureError where results that share memory in eager, with each other or with what is given, would
        not do so here.
        """
        owners: dict[int, set[str]] = {}
        tensors = [(node, "given") for node in self.sources]
        for (kind, what), ref in zip(self.exported.outputs, outputs, strict=True):
            if kind == "value" and isinstance(results[what], Node):
                base = ref.view[0] if ref.view else ref
                tensors.append((results[what], str(base.name) if base.kind == "tensor" else "given"))
        for node, owner in tensors:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and 0 not in _known(value):
                owners.setdefault(torch_private.storage_of(value), set()).add(owner)
        if any(len(those) > 1 for those in owners.values()):
            raise CaptureError("the forward returns tensors that share memory in a way that no graph repeats")

    def _way_to(self, node: Node, written: dict[Node, Value]) -> tuple[Node, list[ViewStep]]:
        """What a result is a view of, and how; of a tensor that is itself a result or the caller's, no steps."""
        return view_steps(node, self.printer.dim, lambda one: self._tensor_of(one, written).op == "placeholder")

    def _tensor_of(self, node: Node, written: dict[Node, Value]) -> Node:
        """The node; for the new value of a written input in a functionalised graph, that input."""
        if node.op == "placeholder" or not self.exported.seconds.get("functionalize"):
            return node
        new = self.converter.values.get(node)
        return next((placeholder for placeholder, value in written.items() if value is new), node)

    def _given(self, placeholder: Node) -> OutputRef:
        """The tensor behind a placeholder: the caller's, or one that lies outside of the module."""
        kind, target = self.sources[placeholder]
        if kind == "constant":
            return OutputRef("constant", value=self.program.constants[str(target)])
        return OutputRef("input", flat_index=int(target)) if kind == "input" else OutputRef("input", name=str(target))

    def _input_shapes(self) -> list[tuple[Node, tuple[int | str, ...]]]:
        return [(n, self.printer.shape(n.meta["val"])) for n in self.sources]

    def _graph_output(self, value: Value, name: str, traced: Any = None) -> str:
        """Declares a graph output; what no node computes, or what is an output already, passes through Identity."""
        storage = torch_private.storage_of(traced) if isinstance(traced, torch.Tensor) else -1 - len(self._memory)
        memory = self._memory.setdefault(storage, len(self._memory))
        if not self.builder.is_computed(value) or value.name in self.declared:
            result = self.builder.value(name, value.dtype, value.shape)
            self.builder.node_name, self.builder.metadata = "", {}
            self.builder.node("Identity", [value], [result])
            value = result
        self.declared.add(value.name)
        self.builder.output(value, memory)
        return value.name


def _is_made_within(constant: Node) -> bool:
    """Whether the forward makes a constant of its trace, of numbers: each use is a copy of it. Any other is a tensor of
    the program's, whose values and gradient are its own.
    """
    users = list(constant.users)
    return bool(users) and all(user.target is torch.ops.aten.lift_fresh_copy.default for user in users)


def _known(tensor: torch.Tensor) -> list[int]:
    """The sizes that are numbers; to compare a symbol would be a condition."""
    return [size for size in tensor.shape if isinstance(size, int)]


def _taken(refs: Iterator[OutputRef], spec: pytree.TreeSpec) -> list[OutputRef]:
    return list(itertools.islice(refs, spec.num_leaves))


def _object_ref(kind: str, what: Any) -> OutputRef:
    """Where a leaf of the result comes from that is no tensor."""
    if kind in ("given", "again", "container"):
        return OutputRef("input" if kind == "given" else kind, flat_index=what)
    return OutputRef(kind, value=what)

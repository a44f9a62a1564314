"""Finds where a run in the engine and a run in PyTorch part: `ortmodule.debug.compare(model, batch)`.

Three runs of one call, with the same weights, inputs and random numbers: the module itself in PyTorch, the captured
program node by node in PyTorch, and the engine, whose every value is looked at. Values of the last two are matched by
name; those that a graph transform took away are not there to be compared. Nothing of the module is changed: buffers,
gradients and generators are as before.

Not here: two runs of the engine beside each other (divergence.py), and the dump of one (dumping.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import _C
from ..capture import Captured, Trace, capture_for_call
from ..capture.containers.flattening import flatten_call
from ..capture.containers.nodes import flatten, leaves_of, unflatten
from ..capture.source_lines import user_line_of
from ..errors import InvalidArgumentError
from ..graph_transition.info import PostExportProcessedModelInfo
from ..options import Options
from ..ortmodule import ORTModule
from .step_plan import call_of

__all__ = ["Comparison", "Difference", "compare"]

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one value of the engine is from PyTorch's.

    Attributes:
        name: of the value: a node of the graph, an output or a parameter.
        operator: ATen operator that makes it, "" for outputs and gradients.
        module: qualified name of the sub-module that it belongs to.
        source: the user's line, as `path:12: code`, where it is known.
        dtype, shape: of PyTorch's value.
        max_abs: largest absolute error.
        max_rel: the same over the largest absolute value of PyTorch's.
        parted: whether max_abs exceeds the tolerance, or type or shape differ.
    """

    name: str
    operator: str
    module: str
    source: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    parted: bool

    def __str__(self) -> str:
        where = f"  {self.source}" if self.source else ""
        kind = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        operator = f" {self.operator}" if self.operator else ""
        mark = "PARTED" if self.parted else "ok    "
        return f"{mark} {self.max_abs:9.2e} {self.max_rel:9.2e}  {self.name}{operator} {kind}{where}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The product of `compare`; printable.

    Attributes:
        nodes: one per value that both runs have, in the order in which PyTorch computes them.
        outputs: one per tensor of the module's result, against the module itself.
        gradients: one per trained parameter and input, in the order in which backward reaches them.
        unmatched: values of the program that the engine's graph does not have: its transforms took them away.
    """

    nodes: tuple[Difference, ...]
    outputs: tuple[Difference, ...]
    gradients: tuple[Difference, ...]
    unmatched: tuple[str, ...]

    @property
    def first(self) -> Difference | None:
        """The first node whose numbers part; None where all agree."""
        return next((d for d in self.nodes if d.parted), None)

    @property
    def first_gradient(self) -> Difference | None:
        """The first gradient, from the loss backwards, whose numbers part; None where all agree."""
        return next((d for d in self.gradients if d.parted), None)

    @property
    def equal(self) -> bool:
        """Whether nothing parts."""
        return not any(d.parted for d in (*self.nodes, *self.outputs, *self.gradients))

    def __str__(self) -> str:
        lines = [
            f"{len(self.nodes)} values compared, {len(self.unmatched)} not in the engine's graph; "
            f"{len(self.outputs)} outputs, {len(self.gradients)} gradients"
        ]
        if self.first is not None:
            lines += ["first node whose numbers part:", f"  {self.first}", f"  module: {self.first.module or '(top)'}"]
        elif any(d.parted for d in self.outputs):
            lines.append("every node agrees and an output does not: what was captured is not what the module computes")
        elif self.first_gradient is not None:
            lines += ["forward agrees; first gradient that parts:", f"  {self.first_gradient}"]
        else:
            lines.append("all agree")
        lines.append("state   max abs   max rel   value")
        lines += [str(d) for d in (*self.nodes, *self.outputs, *self.gradients)]
        return "\n".join(lines)


def compare(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Runs one call in PyTorch and in the engine and compares every value, output and gradient.

    Dropout draws eager's masks in both, whatever the model's options say: other masks would part everywhere.

    Args:
        model: an ORTModule or any nn.Module, in the mode (train or eval) to be looked at.
        batch: a mapping of keyword arguments, a tuple or list of positional ones, or the one argument.
        loss: makes a scalar of the module's result, for the gradients. By default the result's `loss`, or the result
            itself if it is a scalar, or the result's inner product with fixed random numbers.
        rtol: largest error as a part of the largest value of a tensor (default: 1e-4 in float32, 5e-2 in bfloat16,
            5e-3 in float16, 1e-9 in float64); integers must be equal.
        atol: error that is never too large (default: rtol / 100).

    Raises:
        CaptureError: the module cannot be captured as a whole; compare its sub-modules.
        InvalidArgumentError: `model` is no module, or `loss` gives no scalar.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"compare takes a module, got {type(model).__name__}")
    module = model.module if type(model) is ORTModule else model
    args, kwargs = call_of(module, batch)
    captured = capture_for_call(module, args, kwargs, keep_trace=True)
    trace = captured.trace
    assert trace is not None
    judge = _Judge(rtol, atol)
    options = model._options if type(model) is ORTModule else Options()
    run = _Run(module, captured, args, kwargs, loss, options)
    expected, expected_gradients = run.module()
    reference = run.program()
    values, result, gradients = run.engine()

    nodes, unmatched = [], []
    for node, name in _values(trace):
        if name not in values or node.name not in reference:
            unmatched.append(name)
            continue
        got, want = values[name], _part(reference[node.name], name, trace, node)
        path = node.meta.get("nn_module_stack")
        owner = next(reversed(path.values()))[0] if path else ""
        source = user_line_of(node.meta.get("stack_trace")) or ""
        nodes.append(judge(name, got, want, str(node.target), str(owner).removeprefix("module.").strip("@"), source))
    outputs = [
        judge(f"output {i}", got, want)
        for i, (got, want) in enumerate(zip(_tensors(result), _tensors(expected), strict=True))
    ]
    differences = [
        judge(f"gradient of {name}", gradients[name], expected_gradients[name])
        for name in _backward_order(trace, list(gradients))
    ]
    return Comparison(tuple(nodes), tuple(outputs), tuple(differences), tuple(unmatched))


class _Judge:
    """Measures the distance of two tensors."""

    def __init__(self, rtol: float | None, atol: float | None) -> None:
        self._rtol, self._atol = rtol, atol

    def __call__(
        self, name: str, got: Any, want: Any, operator: str = "", module: str = "", source: str = ""
    ) -> Difference:
        if got is None or want is None or got.shape != want.shape or got.dtype != want.dtype:
            kind = want if want is not None else got
            same = got is None and want is None
            shape, dtype = (tuple(kind.shape), kind.dtype) if kind is not None else ((), torch.float32)
            error = 0.0 if same else float("inf")
            return Difference(name, operator, module, source, dtype, shape, error, error, not same)
        wide = torch.complex128 if want.is_complex() else torch.float64
        a, b = got.detach().to(wide), want.detach().to(wide)
        equal = (a == b) | (a.isnan() & b.isnan())
        errors = torch.where(equal, 0.0, (a - b).abs().nan_to_num(nan=float("inf")))
        finite = b.abs()[b.isfinite()] if b.numel() else b.abs()
        max_abs = float(errors.max()) if errors.numel() else 0.0
        scale = float(finite.max()) if finite.numel() else 0.0
        max_rel = max_abs / scale if scale else (0.0 if max_abs == 0 else float("inf"))
        rtol = _TOLERANCE.get(want.dtype, 0.0) if self._rtol is None else self._rtol
        atol = rtol / 100 if self._atol is None else self._atol
        parted = max_abs > atol + rtol * scale
        return Difference(name, operator, module, source, want.dtype, tuple(want.shape), max_abs, max_rel, parted)


class _Run:
    """The three runs, each on tensors of its own and from the same random state."""

    def __init__(
        self,
        module: torch.nn.Module,
        captured: Captured,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: Callable[[Any], torch.Tensor] | None,
        options: Options,
    ) -> None:
        self._module, self._captured, self._loss, self._options = module, captured, loss, options
        call = flatten_call(args, kwargs)
        self._leaves, self._shape = call.leaves, call.shape
        self._state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def module(self) -> tuple[Any, dict[str, torch.Tensor | None]]:
        """The module itself in PyTorch: its result and gradients."""
        state, leaves = self._copies()
        call = self._shape.filled(leaves)
        with _same_random_numbers():
            result = torch.func.functional_call(self._module, state, call.args, call.kwargs)
        return _detached(result), self._gradients(result, state, leaves)

    def program(self) -> dict[str, Any]:
        """The captured program in PyTorch: every value by the name of its node."""
        trace = self._captured.trace
        assert trace is not None
        state, leaves = self._copies()
        inputs = []
        for node in trace.program.graph.nodes:
            if node.op == "placeholder":
                kind, target = trace.sources[node]
                inputs.append(leaves[int(target)] if kind == "input" else self._tensor(str(target), node, state))
        recorder = _Recorder(trace.program.graph_module)
        with _same_random_numbers(), torch.no_grad(), contextlib.ExitStack() as stack:
            for device in ("cpu", "cuda"):  # autocast's casts are nodes of the program
                stack.enter_context(torch.autocast(device, enabled=False))
            recorder.run(*inputs, enable_io_processing=False)
        return recorder.values

    def engine(self) -> tuple[dict[str, torch.Tensor], Any, dict[str, torch.Tensor | None]]:
        """The engine: every value of its graph by name, the module's result, gradients."""
        state, leaves = self._copies()
        captured = self._captured
        tensors = {n: self._tensor(n, None, state) for n in (*captured.parameters, *captured.buffers)}
        info = PostExportProcessedModelInfo.build(
            captured, {**tensors, **captured.constants}, leaves, torch.is_grad_enabled()
        )
        inputs = info.construct_inputs(leaves)
        device = next((str(t.device) for t in inputs), "cpu")
        wanted = info.onnx_graph_input_names_require_grad
        session = _C.Session(
            info.post_export_processed_model.SerializeToString(),
            "training" if wanted else "inference",
            wanted,
            {"device": device, "dropout": "torch", "matmul": self._options.matmul},
        )
        values: dict[str, torch.Tensor] = {}

        def keep(phase: str, node: str, operator: str, given: list[Any], made: list[tuple[str, Any]]) -> None:
            if phase == "forward":
                values.update({name: t.clone() for name, t in made if isinstance(t, torch.Tensor)})

        session.observe(keep)
        with _same_random_numbers():
            result = info.restore_outputs(session.run(inputs), leaves)
        return values, _detached(result), self._gradients(result, state, leaves)

    def _copies(self) -> tuple[dict[str, torch.Tensor], list[Any]]:
        def copy(t: torch.Tensor) -> torch.Tensor:
            return t.detach().clone().requires_grad_(t.requires_grad)

        leaves = [copy(x) if isinstance(x, torch.Tensor) else x for x in self._leaves]
        return {name: copy(t) for name, t in self._state.items()}, leaves

    def _tensor(self, name: str, node: torch.fx.Node | None, state: dict[str, torch.Tensor]) -> torch.Tensor:
        if name in state:
            return state[name]
        constants = self._captured.constants
        if name in constants:
            return constants[name]
        trace = self._captured.trace
        assert trace is not None and node is not None
        targets = {spec.arg.name: spec.target for spec in trace.program.graph_signature.input_specs}
        return trace.program.constants[targets[node.name]]

    def _gradients(
        self, result: Any, state: dict[str, torch.Tensor], leaves: list[Any]
    ) -> dict[str, torch.Tensor | None]:
        named = {n: t for n, t in state.items() if t.requires_grad}
        named |= {n: leaves[i] for i, n in self._captured.user_inputs if leaves[i].requires_grad and leaves[i].is_leaf}
        total = self._total(result)
        if not named or total is None or not total.requires_grad:
            return dict.fromkeys(named)
        return dict(zip(named, torch.autograd.grad(total, list(named.values()), allow_unused=True), strict=True))

    def _total(self, result: Any) -> torch.Tensor | None:
        if self._loss is not None:
            total = self._loss(result)
            if not isinstance(total, torch.Tensor) or total.numel() != 1:
                raise InvalidArgumentError("loss should make a scalar tensor of the module's result")
            return total
        given = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", result)
        if isinstance(given, torch.Tensor) and given.numel() == 1:
            return given
        generator = torch.Generator().manual_seed(0)
        product: torch.Tensor | None = None
        for t in _tensors(result):
            if t.requires_grad:
                part = (t * torch.randn(t.shape, generator=generator).to(t)).sum()
                product = part if product is None else product + part
        return product


class _Recorder(torch.fx.Interpreter):
    """Runs a program and keeps a copy of what each node gave."""

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__(program)
        self.values: dict[str, Any] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Recurrent networks are kept whole by an operator of ours, which is torch's function of that name.
        if getattr(target, "namespace", "") == "ortmodule" and hasattr(torch._VF, target._opname):
            return getattr(torch._VF, target._opname)(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self.values[n.name] = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, result)
        return result


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def _values(trace: Trace) -> Iterator[tuple[torch.fx.Node, str]]:
    """The graph's values and the nodes they stand for; each value once."""
    seen: set[str] = set()
    for node, made in trace.results:
        for value in made if isinstance(made, tuple | list) else (made,):
            name = getattr(value, "name", None)
            if name is not None and name not in seen:
                seen.add(name)
                yield node, name


def _part(result: Any, name: str, trace: Trace, node: torch.fx.Node) -> Any:
    """Of a node with several results, the one that the graph calls `name`."""
    if isinstance(result, torch.Tensor):
        return result
    made = next(m for n, m in trace.results if n is node)
    position = next(i for i, value in enumerate(made) if getattr(value, "name", None) == name)
    return result[position]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]


def _detached(value: Any) -> Any:
    leaves, spec = flatten(value)
    return unflatten((t.detach().clone() if isinstance(t, torch.Tensor) else t for t in leaves), spec)


def _backward_order(trace: Trace, names: list[str]) -> list[str]:
    """Parameters and inputs by their last use in the program, the latest first."""
    order = {node: i for i, node in enumerate(trace.program.graph.nodes)}
    last: dict[str, int] = {}
    for node, (kind, target) in trace.sources.items():
        name = str(target) if kind != "input" else node.name
        last[name] = max((order[user] for user in node.users), default=-1)
    return sorted(names, key=lambda name: -last.get(name, -1))

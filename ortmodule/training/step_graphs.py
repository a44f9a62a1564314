"""The graphs of training artifacts: a module with its loss in training mode, in evaluation mode, and the module alone.

Each takes what a call gives and then the module's tensors; these have the module's own names, the loss's are
`loss.<name>`. Not here: the optimizer's graphs (update_rules.py), files (artifacts.py).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from torch import nn

from .. import _C
from ..capture import Captured, capture_for_call, leaf_names
from ..capture.containers.nodes import leaves_of, paths_of
from ..errors import InvalidArgumentError, UnsupportedError
from .captured_graph import call_of, embed_constants, name_outputs, rename, unique, ways_of, without_left

__all__ = ["StepGraph", "StepGraphs", "capture_step_graphs"]

_FLOATING = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_OWN = "module."
Loss = Callable[..., torch.Tensor]


@dataclasses.dataclass
class StepGraph:
    """A graph with the names of what goes in and out, in the graph's order.

    Attributes:
        proto: the graph.
        inputs: what a call gives.
        tensors: the module's and the loss's, behind those.
        outputs: what a call gets.
        written: (output behind those, tensor that it is the new value of).
        portable: whether it is of standard operators alone.
    """

    proto: onnx.ModelProto
    inputs: list[str]
    tensors: list[str]
    outputs: list[str]
    written: list[tuple[str, str]]
    portable: bool = False


@dataclasses.dataclass
class StepGraphs:
    """The three graphs, and how they name tensors.

    Attributes:
        names: of each parameter and buffer, by its first name in a module that has `module` and `loss`.
    """

    training: StepGraph
    evaluation: StepGraph
    inference: StepGraph
    names: dict[str, str]


class Step(nn.Module):
    """A module with its loss, so that both are traced as one forward. `results`: what that returns."""

    def __init__(self, module: nn.Module, loss: Loss | None, results: tuple[str, ...] = ("loss",)) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self.results = results

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], *target: Any) -> dict[str, Any]:
        output = self.module(*args, **kwargs)
        results: dict[str, Any] = {}
        if "loss" in self.results:
            results["loss"] = _own_loss(output) if self.loss is None else self.loss(output, *target)
        if "output" in self.results:
            results["output"] = output
        return results


def _own_loss(output: Any) -> Any:
    """Of a module that computes it itself."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    return output.loss if hasattr(output, "loss") else output[0]


@dataclasses.dataclass(frozen=True)
class StepCall:
    """The example: arguments of the module, and of the loss."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: tuple[Any, ...]

    @staticmethod
    def of(sample_inputs: Any, loss: Loss | None) -> StepCall:
        """Takes the last argument, or the one named `target`, for the loss's."""
        args, kwargs = call_of(sample_inputs)
        if loss is None:
            return StepCall(args, kwargs, ())
        if not kwargs and len(args) > 1:
            return StepCall(args[:-1], {}, (args[-1],))
        if "target" in kwargs:
            return StepCall(args, {k: v for k, v in kwargs.items() if k != "target"}, (kwargs["target"],))
        raise InvalidArgumentError(
            "sample_inputs are the module's inputs and then the loss's target: a tuple (inputs..., target), or a dict "
            "of the module's keyword arguments with the further key 'target'"
        )

    def names(self, module: nn.Module, with_target: bool) -> list[str]:
        """Of each flat leaf of the call of a Step."""
        own = leaf_names(module, self.args, self.kwargs)
        if not with_target:
            return own
        return own + [unique(".".join(["target", *path[1:]]), set(own)) for path in paths_of(self.target)]

    def arguments(self, with_target: bool) -> tuple[Any, ...]:
        return (self.args, self.kwargs, *(self.target if with_target else ()))


def capture_step_graphs(
    module: nn.Module, loss: Loss | None, sample_inputs: Any, dynamic_axes: Mapping[str, Iterable[int]] | None
) -> StepGraphs:
    """Captures the three graphs. Raises what `export_training_artifacts` raises."""
    call = StepCall.of(sample_inputs, loss)
    step = Step(module, loss)
    step.training = module.training
    with _mode(step, True):
        training = _captured(step, call, ("loss",), dynamic_axes)
    with _mode(step, False):
        evaluation = _captured(step, call, ("loss", "output"), dynamic_axes)
        inference = _captured(step, call, ("output",), dynamic_axes)
    graphs = [_graph_of(one, step, call) for one in (training, evaluation, inference)]
    names = _tensor_names(step, graphs)
    for graph in graphs:
        rename(graph.proto.graph, names)
        graph.tensors = [names[name] for name in graph.tensors]
        graph.written = [(output, names[name]) for output, name in graph.written]
    _check_loss(graphs[0])
    return StepGraphs(graphs[0], graphs[1], _portable(graphs[2]), names)


@contextmanager
def _mode(step: Step, training: bool) -> Iterator[None]:
    """A module that trains keeps the modes of its parts, of which some may be frozen; one that does not is switched."""
    modes = {part: part.training for part in step.modules()}
    try:
        if step.module.training != training:
            step.train(training)
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _captured(
    step: Step, call: StepCall, results: tuple[str, ...], axes: Mapping[str, Iterable[int]] | None
) -> Captured:
    step.results = results
    with_target = "loss" in results
    captured = capture_for_call(
        step, call.arguments(with_target), {}, dynamic_dims=_dynamic_dims(step.module, call, with_target, axes)
    )
    if captured.needs_python:
        raise UnsupportedError(
            f"the forward of {type(step.module).__name__} calls {captured.needs_python[0]}, which is Python's; a graph "
            "that trains without Python cannot have it"
        )
    if ways := ways_of(captured):
        text = "\n  ".join(ways)
        warnings.warn(f"the artifacts hold only for calls in which, as in the example,\n  {text}", stacklevel=4)
    return captured


def _dynamic_dims(
    module: nn.Module, call: StepCall, with_target: bool, axes: Mapping[str, Iterable[int]] | None
) -> set[tuple[int, int]]:
    """Without `axes` the first axis of every tensor, the batch's."""
    leaves = leaves_of(call.arguments(with_target))
    names = call.names(module, with_target)
    tensors = {name: i for i, name in enumerate(names) if isinstance(leaves[i], torch.Tensor)}
    if axes is None:
        return {(i, 0) for i in tensors.values() if leaves[i].dim() > 0}
    dims = set()
    for name, wanted in axes.items():
        if name not in tensors and not (name.split(".")[0] == "target" and not with_target):
            raise InvalidArgumentError(f"dynamic_axes names the input {name!r}; the tensors are {sorted(tensors)}")
        for axis in wanted if name in tensors else ():
            rank = leaves[tensors[name]].dim()
            if not -rank <= axis < rank:
                raise InvalidArgumentError(f"dynamic_axes: the input {name!r} has {rank} axes, got {axis}")
            dims.add((tensors[name], axis % rank))
    return dims


def _graph_of(captured: Captured, step: Step, call: StepCall) -> StepGraph:
    """With tensors named as in `step`, and what a call gives and gets as users know it."""
    proto = without_left(captured)
    embed_constants(proto, captured)
    results = name_outputs(proto, captured)
    users = {name for _, name in captured.user_inputs}
    unwritten = {output.name for output in proto.graph.output} - set(results)
    written = []
    for output, (_, kind, name) in zip(list(proto.graph.output)[len(results) :], captured.mutations, strict=True):
        if kind != "input":
            written.append((output.name, str(name)))
            unwritten.discard(output.name)
    kept = [output for output in proto.graph.output if output.name not in unwritten]
    del proto.graph.output[:]
    proto.graph.output.extend(kept)
    with_target = "loss" in results
    names = call.names(step.module, with_target)
    taken = {value for node in proto.graph.node for value in node.output} | {v.name for v in proto.graph.input} - users
    renamed = {name: unique(names[leaf], taken) for leaf, name in captured.user_inputs}
    short = {name: unique(_short(name), taken | set(renamed.values())) for name in results if _short(name) != name}
    rename(proto.graph, {**renamed, **short})
    inputs = [renamed[name] for _, name in captured.user_inputs]
    tensors = [*captured.parameters, *captured.buffers]
    return StepGraph(proto, inputs, tensors, [short.get(name, name) for name in results], written)


def _short(name: str) -> str:
    """`output.logits` is the module's `logits`."""
    first, _, rest = name.partition(".")
    return rest if first == "output" and rest and not rest.split(".")[0].isdigit() else name


def _tensor_names(step: Step, graphs: list[StepGraph]) -> dict[str, str]:
    """The module's own names, but for those that another value of a graph has."""
    every = [*step.named_parameters(), *step.named_buffers()]
    tensors = {name for name, _ in every}
    taken = {name for name in tensors if not name.startswith(_OWN)}
    for graph in graphs:
        values = {v.name for v in (*graph.proto.graph.input, *graph.proto.graph.initializer)}
        taken |= (values | {v for node in graph.proto.graph.node for v in node.output}) - tensors
    short = {name: name.removeprefix(_OWN) for name in tensors}
    return {name: name if short[name] in taken else short[name] for name, _ in every}


def _check_loss(graph: StepGraph) -> None:
    if graph.outputs[:1] != ["loss"]:
        raise InvalidArgumentError("the loss is no tensor that the forward computes")
    kind = graph.proto.graph.output[0].type.tensor_type
    if kind.elem_type not in _FLOATING or kind.shape.dim:
        shape = [d.dim_param or d.dim_value for d in kind.shape.dim]
        name = onnx.TensorProto.DataType.Name(kind.elem_type)
        raise InvalidArgumentError(f"the loss should be a floating scalar, got {name} of shape {shape}")


def _portable(graph: StepGraph) -> StepGraph:
    """In standard operators, for any runtime, where each has a form in them."""
    outputs = [*graph.outputs, *(output for output, _ in graph.written)]
    try:
        exported = onnx.load_from_string(_C.training_graph(graph.proto.SerializeToString(), []))
    except UnsupportedError as error:
        warnings.warn(f"the model for inference will need ortmodule to run: {error}", stacklevel=4)
        return graph
    # What the evaluation of a module writes is no matter of who infers.
    del exported.graph.output[len(graph.outputs) : len(outputs)]
    kept = {value.name for value in exported.graph.input}
    tensors = [name for name in graph.tensors if name in kept]
    return StepGraph(exported, [n for n in graph.inputs if n in kept], tensors, graph.outputs, [], portable=True)

"""`export_training_graph(model, example)`: forward and gradients as one ONNX file that any ONNX runtime runs.

The module is captured as ORTModule captures it, differentiated, and written in plain operators of ai.onnx: every
operator of ours is replaced by its body. Not here: the gradient and the bodies (csrc), and running the file.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import _C
from .capture import Captured, capture_for_call
from .capture.convert.onnx_graph import tensor_proto
from .capture.leaf_names import leaf_names
from .errors import InvalidArgumentError
from .ortmodule import ORTModule

__all__ = ["export_training_graph"]

_FLOATING = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def export_training_graph(
    model: nn.Module,
    example: Any,
    *,
    loss: str | int | None = None,
    dynamic_axes: Mapping[str, Iterable[int]] | None = None,
) -> onnx.ModelProto:
    """The module's forward and the gradients of its parameters as one graph in standard ONNX operators.

    Inputs of the graph, in order: the module's inputs under the names of its forward's arguments, then the parameters
    and buffers that it uses under the module's own names; no weight is stored in the file. Outputs: the module's
    results (`output`, `output.1` or the names of a dict or dataclass such as `loss`), then the new values of buffers
    and inputs that the forward changes as `<name>_new`, then `<name>_grad` for each parameter with `requires_grad`
    (and each input whose example has it), shaped as the parameter.

    Gradients are those of the loss. Where the module returns exactly one floating scalar, that is the loss. Where it
    returns no scalar, the graph takes the gradient of each floating result as a further input, `<result>_grad`.

    Where the forward branches on what its inputs or buffers hold, the graph goes the example's way: a warning says so,
    and the model's metadata have each branch and its answer as `branch.<n>`. Checks that only raise are left out.

    Args:
        model: the module, in the mode in which it should be captured; an ORTModule stands for what it wraps.
        example: one call: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        loss: the result to differentiate, by its name or its position among the results' tensors. One that is no scalar
            gets its gradient as the input `<result>_grad`.
        dynamic_axes: the axes of each input, by its name, whose size may vary; the others are fixed to the example's.

    Raises:
        InvalidArgumentError: no such loss, several scalars and no `loss`, nothing to differentiate, unknown input.
        CaptureError: the module cannot be one graph.
        UnsupportedError: an operator that has no form in standard operators; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"export_training_graph takes an nn.Module, got {type(model).__name__}")
    if isinstance(model, ORTModule):
        model = model.module
    args, kwargs = _call(example)
    captured = capture_for_call(model, args, kwargs, dynamic_dims=_dynamic_dims(model, args, kwargs, dynamic_axes))
    ways = [f"{branch.line or 'a branch'} is {branch.answer}" for branch in captured.branches]
    if ways:
        text = "\n  ".join(ways)
        warnings.warn(f"the exported graph holds only for calls in which, as in the example,\n  {text}", stacklevel=2)
    proto = _without_left(captured)
    results = _name_outputs(proto, captured)
    _embed_constants(proto, captured)
    losses, seeded = _roots(proto, results, loss)
    exported = onnx.load_from_string(
        _C.training_graph(proto.SerializeToString(), _trainable(model, captured, args, kwargs), losses, seeded)
    )
    for i, way in enumerate(ways):
        exported.metadata_props.add(key=f"branch.{i}", value=way)
    return exported


def _without_left(captured: Captured) -> onnx.ModelProto:
    """A copy of the graph without what needs the module: outputs for what its forward sets on it, checks that raise."""
    proto = copy.deepcopy(captured.model)
    nodes = [node for node in proto.graph.node if node.op_type != "Expect"]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    own = {ref.name for ref in captured.outputs} | {output for output, _, _ in captured.mutations}
    outputs = [o for o in proto.graph.output if o.name in own]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def _call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def _dynamic_dims(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Mapping[str, Iterable[int]] | None
) -> set[tuple[int, int]] | None:
    if not axes:
        return None
    leaves = pytree.tree_leaves((args, kwargs))
    every = leaf_names(model, args, kwargs)
    names = {name: i for i, name in enumerate(every) if isinstance(leaves[i], torch.Tensor)}
    dims: set[tuple[int, int]] = set()
    for name, wanted in axes.items():
        if name not in names:
            raise InvalidArgumentError(f"dynamic_axes names the input {name!r}; the tensors are {sorted(names)}")
        rank = leaves[names[name]].dim()
        for axis in wanted:
            if not -rank <= axis < rank:
                raise InvalidArgumentError(f"dynamic_axes: the input {name!r} has {rank} axes, got {axis}")
            dims.add((names[name], axis % rank))
    return dims


def _trainable(model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    leaves = pytree.tree_leaves((args, kwargs))
    inputs = [name for leaf, name in captured.user_inputs if leaves[leaf].requires_grad]
    names = inputs + [name for name in captured.parameters if parameters[name].requires_grad]
    if not names:
        raise InvalidArgumentError(f"no parameter of {type(model).__name__} that its forward uses requires a gradient")
    return names


def _name_outputs(proto: onnx.ModelProto, captured: Captured) -> list[str]:
    """Gives graph outputs the names that users know; those of the module's own results are returned."""
    flat = pytree.tree_unflatten(list(range(len(captured.outputs))), captured.out_spec)
    paths: list[tuple[Any, Any]] = pytree.tree_flatten_with_path(flat)[0]
    taken = {v.name for v in (*proto.graph.input, *proto.graph.value_info, *proto.graph.initializer)}
    renamed: dict[str, str] = {}
    for path, position in paths:
        ref = captured.outputs[position]
        if ref.kind not in ("tensor", "size") or ref.name is None or ref.name in renamed:
            continue
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        if not parts or parts[0].isdigit():
            parts.insert(0, "output")
        renamed[ref.name] = _unique(".".join(parts), taken - {ref.name})
        taken.add(renamed[ref.name])
    results = list(renamed.values())
    users = {leaf: name for leaf, name in captured.user_inputs}
    for output, kind, target in captured.mutations:
        name = users[target] if kind == "input" else target  # type: ignore[index]
        renamed[output] = _unique(f"{name}_new", taken - {output})
        taken.add(renamed[output])
    _rename(proto, renamed)
    return results


def _unique(name: str, taken: set[str]) -> str:
    candidate, i = name, 0
    while candidate in taken:
        i += 1
        candidate = f"{name}_{i}"
    return candidate


def _rename(proto: onnx.ModelProto, names: dict[str, str]) -> None:
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in proto.graph.node:
        for values in (node.input, node.output):
            for i, name in enumerate(values):
                if name in names:
                    values[i] = names[name]


def _embed_constants(proto: onnx.ModelProto, captured: Captured) -> None:
    """Tensors that are neither parameter nor buffer belong to the graph."""
    kept = [v for v in proto.graph.input if v.name not in captured.constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name, tensor in captured.constants.items():
        proto.graph.initializer.append(tensor_proto(tensor.detach().cpu(), name))


def _roots(proto: onnx.ModelProto, results: Sequence[str], loss: str | int | None) -> tuple[list[str], list[str]]:
    """(results whose gradient is 1, results whose gradient is an input of the graph)."""
    kinds = {v.name: v.type.tensor_type for v in proto.graph.output}
    floating = [name for name in results if kinds[name].elem_type in _FLOATING]
    scalars = [name for name in floating if not kinds[name].shape.dim]
    if loss is None:
        if len(scalars) > 1:
            raise InvalidArgumentError(f"the module returns the scalars {scalars}; say which is the loss (loss=...)")
        if not floating:
            raise InvalidArgumentError(f"the module returns no floating tensor to differentiate, but {list(results)}")
        return (scalars, []) if scalars else ([], floating)
    if isinstance(loss, int) and not isinstance(loss, bool):
        if not -len(results) <= loss < len(results):
            raise InvalidArgumentError(f"loss={loss}: the module returns the {len(results)} tensors {list(results)}")
        loss = results[loss]
    if loss not in floating:
        raise InvalidArgumentError(f"loss={loss!r} is none of the floating results {floating}")
    return ([loss], []) if loss in scalars else ([], [loss])

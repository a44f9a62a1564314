"""`export_training_graph(model, example)`: forward and gradients as one ONNX file that any ONNX runtime runs.

The module is captured as ORTModule captures it, differentiated, and written in plain operators of ai.onnx: every
operator of ours is replaced by its body. Not here: the gradient and the bodies (csrc), and running the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from torch import nn

from .. import _C
from ..capture import Captured, capture_for_call
from ..capture.containers.nodes import leaves_of
from ..errors import InvalidArgumentError
from ..ortmodule import ORTModule
from .captured_graph import call_of, dynamic_dims, embed_constants, name_outputs, ways_of, without_left

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
    args, kwargs = call_of(example)
    captured = capture_for_call(model, args, kwargs, dynamic_dims=dynamic_dims(model, args, kwargs, dynamic_axes))
    ways = ways_of(captured)
    if ways:
        text = "\n  ".join(ways)
        warnings.warn(f"the exported graph holds only for calls in which, as in the example,\n  {text}", stacklevel=2)
    proto = without_left(captured)
    results = name_outputs(proto, captured)
    embed_constants(proto, captured)
    losses, seeded = _roots(proto, results, loss)
    exported = onnx.load_from_string(
        _C.training_graph(proto.SerializeToString(), _trainable(model, captured, args, kwargs), losses, seeded)
    )
    for i, way in enumerate(ways):
        exported.metadata_props.add(key=f"branch.{i}", value=way)
    return exported


def _trainable(model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    leaves = leaves_of((args, kwargs))
    inputs = [name for leaf, name in captured.user_inputs if leaves[leaf].requires_grad]
    names = inputs + [name for name in captured.parameters if parameters[name].requires_grad]
    if not names:
        raise InvalidArgumentError(f"no parameter of {type(model).__name__} that its forward uses requires a gradient")
    return names


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

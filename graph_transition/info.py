"""The product of the manager: a graph ready to run, and how to get from a call to its inputs and back.

Field names are ONNX Runtime training's, so that its users find their way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

from ..capture import Captured, OutputRef
from ..capture.containers.nodes import put_together, unflatten
from ..capture.result_views import replayed, symbols_of
from ..errors import InternalError, InvalidArgumentError
from .until_backward import UntilBackward

__all__ = ["FLOATING", "NoLossError", "PostExportProcessedModelInfo"]

Bound = Mapping[int, Any]

FLOATING = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
}


class NoLossError(InvalidArgumentError):
    """Options(outputs="loss") for a module that returns none; unlike a failed capture it is never worked around."""


@dataclasses.dataclass
class PostExportProcessedModelInfo:
    """A captured model after post-export processing.

    Attributes:
        onnx_graph_input_names: every graph input, in order.
        onnx_graph_input_names_require_grad: those that get a gradient.
        onnx_graph_input_names_user_defined: those that come from the call.
        onnx_graph_input_names_require_grad_user_defined: both.
        onnx_graph_input_dynamic_axes_map: input name -> {axis: symbol} of the sizes that may vary.
        buffer_for_ort_runs: input name -> the module's tensor (parameters, buffers, constants).
        post_export_processed_model: the graph.
        data_accessor: input name -> index among the call's flat leaves.
        module_forward_output_schema: pytree spec of the module's result.
        captured: what capture said besides.
        until_backward: looks at a step again in its backward; None: nothing there can tell.
        replaced: graph inputs that are in the place of tensors of the module (shards of parameters), by name.
    """

    onnx_graph_input_names: list[str]
    onnx_graph_input_names_require_grad: list[str]
    onnx_graph_input_names_user_defined: list[str]
    onnx_graph_input_names_require_grad_user_defined: list[str]
    onnx_graph_input_dynamic_axes_map: dict[str, dict[int, str]]
    buffer_for_ort_runs: dict[str, torch.Tensor]
    post_export_processed_model: onnx.ModelProto
    data_accessor: dict[str, int]
    module_forward_output_schema: pytree.TreeSpec
    captured: Captured
    until_backward: UntilBackward | None = None
    replaced: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    @classmethod
    def build(
        cls, captured: Captured, tensors: dict[str, torch.Tensor], leaves: Sequence[Any], grad: bool
    ) -> PostExportProcessedModelInfo:
        """`tensors` are the module's, by graph input name; `grad` says whether gradients are wanted at all."""
        accessor = {name: index for index, name in captured.user_inputs}
        names = [i.name for i in captured.model.graph.input]
        buffers = {n: tensors[n] for n in names if n not in accessor}

        def wants(name: str) -> bool:
            tensor = leaves[accessor[name]] if name in accessor else buffers[name]
            return grad and tensor.requires_grad

        with_grad = [n for n in names if wants(n)]
        axes: dict[str, dict[int, str]] = {}
        for value in captured.model.graph.input:
            dims = value.type.tensor_type.shape.dim
            symbolic = {k: d.dim_param for k, d in enumerate(dims) if d.dim_param}
            if symbolic:
                axes[value.name] = symbolic
        user = [n for n in names if n in accessor]
        return cls(
            names, with_grad, user, [n for n in with_grad if n in accessor], axes, buffers, _without_views(captured),
            accessor, captured.out_spec, captured,
        )  # fmt: skip

    def loss_only(self) -> PostExportProcessedModelInfo:
        """The same without tensors of the result that are no loss; `restore_outputs` gives None for them.

        Raises:
            NoLossError: no tensor of the result is a scalar of a floating type.
        """
        losses = self.losses
        if not losses:
            raise NoLossError(
                'Options(outputs="loss") needs a module that returns its loss, a 0-d floating tensor; this call '
                'returns none (pass the labels, compute the loss in forward, or use outputs="all")'
            )
        sizes = {ref.name for ref in self.captured.outputs if ref.kind == "size"}
        sizes |= {ref.name for ref in self.captured.beside if ref.kind in ("tensor", "size")}
        return self.only({*losses, *sizes} | {output for output, _, _ in self.captured.mutations})

    def only(self, outputs: Set[str | None]) -> PostExportProcessedModelInfo:
        """The same with those outputs of the graph alone."""
        return dataclasses.replace(
            self, post_export_processed_model=_with_outputs(self.post_export_processed_model, outputs)
        )

    @property
    def losses(self) -> set[str]:
        """The results that a backward may begin at without being told a gradient: floating scalars of the graph."""
        results = {ref.name for ref in self.captured.outputs if ref.kind == "tensor"}
        outputs = self.post_export_processed_model.graph.output
        return {o.name for o in outputs if _is_floating_scalar(o) and o.name in results}

    def construct_inputs(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Graph inputs in order, from the call's flat leaves and the module's tensors."""
        accessor, buffers = self.data_accessor, self.buffer_for_ort_runs
        return [leaves[accessor[n]] if n in accessor else buffers[n] for n in self.onnx_graph_input_names]

    def symbol_values(self, leaves: Sequence[Any]) -> dict[str, int]:
        """What the graph's symbols are in this call, as far as one stands alone in some input's shape."""
        values = {}
        for name, axes in self.onnx_graph_input_dynamic_axes_map.items():
            tensor = leaves[self.data_accessor[name]] if name in self.data_accessor else self.buffer_for_ort_runs[name]
            values.update({symbol: tensor.shape[axis] for axis, symbol in axes.items() if symbol.isidentifier()})
        return values

    def returned_as_they_are(self) -> dict[str, torch.Tensor]:
        """The module's tensors, as they are at this moment, that `restore_outputs` looks at, by graph input name."""
        refs = [ref.view[0] if ref.view is not None else ref for ref in self.captured.result_refs]
        names = {ref.name for ref in refs if ref.kind == "input" and ref.name is not None}
        if self.until_backward is not None:
            names |= self.until_backward.names
        return {name: t for name, t in self.buffer_for_ort_runs.items() if name in names}

    def restore_outputs(
        self,
        outputs: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        bound: Bound | None = None,
        own: Mapping[str, torch.Tensor] | None = None,
        given: Sequence[Any] = (),
    ) -> Any:
        """The module's result in its own structure, from the graph's outputs (mutations removed) in graph order.

        What the forward leaves on its modules, and changes of what it is given, is set there; what it says is said.

        Args:
            outputs: of the graph.
            leaves: of the call.
            bound: by a condition's identity, the object that it holds for; those of the trace if None.
            own: what `returned_as_they_are` gave for calls of this kind; the tensors of the last other one if None.
            given: of the call, `Call.changeable`.
        """
        own = self.buffer_for_ort_runs if own is None else own
        by_name: dict[str | None, Any] = dict(
            zip((o.name for o in self.post_export_processed_model.graph.output), outputs, strict=False)
        )
        if self.until_backward is not None:
            self.until_backward.begin(by_name, leaves, own)  # type: ignore[arg-type]
        views: dict[str | None, Any] = {}
        copies: dict[int, Any] = {}

        def leaf(ref: OutputRef) -> Any:  # not recursive: a cycle would keep the step's tensors
            if ref.kind == "object":
                return ref.value.at_a_call(bound or {}, copies)
            if ref.kind == "container" and ref.flat_index is not None:
                return given[ref.flat_index]
            if ref.view is None:
                return self._plain(ref, by_name, leaves, own)
            if ref.name not in views:
                base, steps = self._plain(ref.view[0], by_name, leaves, own), ref.view[1]
                symbols = self.symbol_values(leaves) if symbols_of(steps) else {}
                views[ref.name] = None if base is None else replayed(steps, base, symbols)
            return views[ref.name]

        for message in self.captured.messages:
            message.say()
        if self.captured.shares_containers:
            made: list[Any] = []
            result = _unflattened(self.module_forward_output_schema, map(leaf, self.captured.outputs), made)
            for left in self.captured.left:
                left.table[left.name] = _unflattened(left.spec, map(leaf, left.leaves), made)
            for change in self.captured.given_changes:
                change.make(given[change.number], _unflattened(change.spec, map(leaf, change.leaves), made))
            return result
        for left in self.captured.left:
            left.table[left.name] = unflatten(map(leaf, left.leaves), left.spec)
        for change in self.captured.given_changes:
            change.make(given[change.number], unflatten(map(leaf, change.leaves), change.spec))
        return unflatten(map(leaf, self.captured.outputs), self.module_forward_output_schema)

    def _plain(
        self, ref: OutputRef, by_name: Mapping[str | None, Any], leaves: Sequence[Any], own: Mapping[str, torch.Tensor]
    ) -> Any:
        """What `ref` is, but for a view; None for a tensor that is not wanted."""
        if ref.kind == "tensor":
            return by_name.get(ref.name)
        if ref.kind == "size":
            return int(by_name[ref.name])
        if ref.kind == "constant":
            return ref.value
        if ref.kind == "again" and ref.flat_index is not None:
            return _Again(ref.flat_index)
        if ref.kind == "input" and ref.flat_index is not None:
            return leaves[ref.flat_index]
        if ref.kind == "input" and ref.name is not None:
            return own[ref.name]
        raise InternalError(f"unknown output kind {ref.kind!r}")


class _Again:
    """Stands for the container of a number, until that is made."""

    def __init__(self, number: int) -> None:
        self.number = number


def _unflattened(spec: pytree.TreeSpec, leaves: Iterator[Any], made: list[Any]) -> Any:
    """What `unflatten` makes, where a container may stand in several places; `made` receives all."""
    number = len(made)
    made.append(None)
    if spec.is_leaf():
        leaf = next(leaves)
        return made[leaf.number] if isinstance(leaf, _Again) else leaf
    children = [_unflattened(spec.child(i), leaves, made) for i in range(spec.num_children)]
    made[number] = put_together(spec, children)
    return made[number]


def _without_views(captured: Captured) -> onnx.ModelProto:
    """The model without the results that are views of others, which the call makes of those."""
    views = {ref.name for ref in captured.outputs if ref.view is not None}
    kept = {o.name for o in captured.model.graph.output} - views
    return _with_outputs(captured.model, kept) if views and kept else captured.model


def _with_outputs(model: onnx.ModelProto, names: Set[str | None]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outputs = [o for o in copy.graph.output if o.name in names]
    del copy.graph.output[:]
    copy.graph.output.extend(outputs)
    return copy


def _is_floating_scalar(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.elem_type in FLOATING and tensor.HasField("shape") and not tensor.shape.dim

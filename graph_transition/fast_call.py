"""Binds a session to the call it was made for, so that the next such call is checked and run natively."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from ..capture.trace.state.scope_settings import INFERENCE_TENSORS, LEAVES, OFFSETS, STRIDES
from .conditions import MISSING, Watch
from .info import Bound, PostExportProcessedModelInfo
from .signature import MODULE_TABLES, global_hook_tables, hook_tables

if TYPE_CHECKING:
    from ..capture import Captured, OutputRef
    from .captured_graph import CapturedGraph
    from .ready_session import ReadySession
    from .signature import Call

__all__ = ["make_fast_call"]

_NOT_LOOKED_AT = frozenset({INFERENCE_TENSORS, LEAVES, OFFSETS, STRIDES})  # by native patterns


def make_fast_call(
    module: torch.nn.Module,
    transition: ReadySession,
    graph: CapturedGraph,
    call: Call,
    bound: Bound | None,
) -> _C.FastCall | None:
    """A FastCall for calls like this one; None where there is no native pattern for them.

    Args:
        bound: by a condition's identity, the object that it holds for; the pattern fits calls that find the same.
    """
    info, captured, dynamic = transition.info, transition.info.captured, graph.dynamic
    if graph.effects:  # the next call will find them
        return None
    if captured.flags or not _NOT_LOOKED_AT.isdisjoint(captured.settings):
        return None
    tables = [table for m in module.modules() for table in (m._modules, m._parameters, m._buffers)]
    if not all(isinstance(table, dict) for table in tables):  # a module of torch.jit.script has views of its own
        return None
    sources = [_source(module, info, name) for name in info.onnx_graph_input_names]
    guard = None
    if (dynamic and captured.guards) or captured.branches:
        guard = captured.check
    single = (
        [ref.kind for ref in captured.outputs] == ["tensor"]
        and captured.outputs[0].view is None
        and info.module_forward_output_schema.is_leaf()
        and not (info.until_backward or captured.left or captured.given_changes or captured.messages)
    )
    restore = None if single else _Restore(info, bound)
    further = _further_places(module, set(info.onnx_graph_input_names), captured)
    further_tensors = [value for _, _, value in further if value is not None]
    try:
        watches, reached = graph.watches(call)
        return _C.FastCall(
            transition.session,
            call.args,
            call.kwargs,
            list(dynamic),
            sources,
            [
                *_tree_watches(module),
                *(("entry", *entry) for entry in further),
                *(("tensor", value) for value in further_tensors),
                *watches,
                *_returned(module, captured.result_refs),
                *_written(module, captured),
            ],
            MISSING,
            _unread(module, {id(source[0][source[1]]) for source in sources if isinstance(source, tuple)}),
            further_tensors,
            guard,
            restore,
            reached,
            call.leaves,
            call.changeable,
        )
    except TypeError:
        return None


class _Restore:
    """Builds the module's result from graph outputs and the call's leaves."""

    def __init__(self, info: PostExportProcessedModelInfo, bound: Bound | None) -> None:
        self._info, self._bound, self._own = info, bound, info.returned_as_they_are()

    def __call__(self, outputs: Sequence[torch.Tensor], leaves: Sequence[Any], given: Sequence[Any]) -> Any:
        return self._info.restore_outputs(outputs, leaves, self._bound, self._own, given)


def _source(module: torch.nn.Module, info: PostExportProcessedModelInfo, name: str) -> Any:
    """Where a graph input is found at a call: a leaf's number, a constant, or a table of the module and a name."""
    if name in info.data_accessor:
        return info.data_accessor[name]
    constant = info.captured.constants.get(name, info.replaced.get(name))
    return _tensor_entry(module, name) if constant is None else constant


def _tensor_entry(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    owner, _, key = name.rpartition(".")
    holder = module.get_submodule(owner)
    return (holder._parameters if key in holder._parameters else holder._buffers), key


def _returned(module: torch.nn.Module, outputs: Iterable[OutputRef]) -> list[Watch]:
    """The module's tensors that the call returns as they are: they must be the very same ones."""
    bases = [ref.view[0] if ref.view is not None else ref for ref in outputs]
    names = [ref.name for ref in bases if ref.kind == "input" and ref.name is not None]
    entries = [_tensor_entry(module, name) for name in names]
    return [("entry", holder, key, holder[key]) for holder, key in entries if key in holder]


def _written(module: torch.nn.Module, captured: Captured) -> list[Watch]:
    """The module's tensors that the call writes: another in one's place may share memory with what is read."""
    names = [str(target) for _, kind, target in captured.mutations if kind in ("buffer", "parameter")]
    entries = [_tensor_entry(module, name) for name in names]
    return [("entry", holder, key, holder[key]) for holder, key in entries]


def _further_places(
    module: torch.nn.Module, read: set[str], captured: Captured,
) -> list[tuple[dict[str, Any], str, torch.Tensor | None]]:  # fmt: skip
    """Parameters and buffers that are no inputs of the graph: the forward may have asked whether they are None, what
    sizes they have or whether they want a gradient, or they are a further name of one that is. Not buffers that each
    call binds anew.

    Returns:
        For each: its table, its name there, and what it is.
    """
    anew = {(id(one.table), one.name) for one in captured.left}
    return [
        (table, key, value)
        for name, m in module.named_modules()
        for table in (m._parameters, m._buffers)
        for key, value in table.items()
        if f"{name}.{key}".lstrip(".") not in read and (id(table), key) not in anew
    ]


def _unread(module: torch.nn.Module, read: set[int]) -> list[torch.Tensor]:
    """The module's tensors that are no inputs of the graph: an argument may be one of them."""
    tensors = {id(t): t for m in module.modules() for t in (*m._parameters.values(), *m._buffers.values())}
    return [t for t in tensors.values() if t is not None and id(t) not in read]


def _tree_watches(module: torch.nn.Module) -> list[Watch]:
    """What the call's signature says of the module's tree."""
    watches: list[Watch] = [("length", table, len(table)) for table in global_hook_tables()]
    for m in module.modules():
        named: dict[str, dict[Any, Any]] = {name: getattr(m, name) for name in MODULE_TABLES}
        watches.append(("type", m, type(m)))
        watches.append(("entry", m.__dict__, "training", m.training))
        watches.extend(("entry", m.__dict__, name, table) for name, table in named.items() if name in m.__dict__)
        watches.extend(("entry", m._modules, name, child) for name, child in m._modules.items())
        watches.extend(("order", table, tuple(table)) for table in (m._modules, m._parameters, m._buffers))
        watches.extend(("length", table, len(table)) for table in hook_tables(m))
    return watches

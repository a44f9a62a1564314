"""Binds a session to the call it was made for, so that the next such call is checked and run natively."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from ..capture.reads import Held, holder_of
from ..capture.settings import LEAVES, STRIDES
from .signature import global_hook_tables, hook_tables

if TYPE_CHECKING:
    from ..capture import OutputRef
    from .scope import ScopeRead
    from .transition import Transition

__all__ = ["make_fast_call"]


def make_fast_call(
    module: torch.nn.Module,
    transition: Transition,
    dynamic: Iterable[tuple[int, int]],
    scope: Iterable[ScopeRead],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _C.FastCall | None:
    """A FastCall for calls like this one; None where there is no native pattern for them."""
    info, captured = transition.info, transition.info.captured
    if not {STRIDES, LEAVES}.isdisjoint(captured.settings) or captured.flags:  # a native pattern does not look at them
        return None
    tables = [table for m in module.modules() for table in (m._modules, m._parameters, m._buffers)]
    if not all(isinstance(table, dict) for table in tables):  # a module of torch.jit.script has views of its own
        return None
    sources: list[Any] = []
    for name in info.onnx_graph_input_names:
        if name in info.data_accessor:
            sources.append(info.data_accessor[name])
        elif name in captured.constants:
            sources.append(captured.constants[name])
        else:
            sources.append(_tensor_entry(module, name))
    guard = None
    if (dynamic and captured.guards) or captured.branches:
        guard = captured.check
    outputs = captured.outputs
    left = [ref for one in captured.left for ref in one.leaves]
    single = len(outputs) == 1 and outputs[0].kind == "tensor" and info.module_forward_output_schema.is_leaf()
    restore = None if single and not captured.left else _Restore(info)
    try:
        return _C.FastCall(
            transition.session,
            args,
            kwargs,
            list(dynamic),
            sources,
            [
                *_watches(module, captured.attributes),
                *_absent_and_unread(module, set(info.onnx_graph_input_names)),
                *((read.holder, read.key, read.value) for read in scope),
                *_returned(module, [*outputs, *left]),
            ],
            guard,
            restore,
        )
    except TypeError:
        return None


class _Restore:
    """Builds the module's result from graph outputs and the call's leaves."""

    def __init__(self, info: Any) -> None:
        self._info = info

    def __call__(self, outputs: Sequence[torch.Tensor], leaves: Sequence[Any]) -> Any:
        return self._info.restore_outputs(outputs, leaves)


def _tensor_entry(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    owner, _, key = name.rpartition(".")
    holder = module.get_submodule(owner)
    return (holder._parameters if key in holder._parameters else holder._buffers), key


def _returned(module: torch.nn.Module, outputs: Iterable[OutputRef]) -> list[tuple[Any, Any, Any]]:
    """The module's tensors that the call returns as they are: they must be the very same ones."""
    names = [ref.name for ref in outputs if ref.kind == "input" and ref.name is not None]
    entries = [_tensor_entry(module, name) for name in names]
    return [(holder, key, holder[key]) for holder, key in entries if key in holder]


def _absent_and_unread(module: torch.nn.Module, read: set[str]) -> list[tuple[Any, Any, Any]]:
    """Entries for parameters and buffers that are no inputs of the graph: the forward may have asked whether they are
    None, or they are a further name of one that is.
    """
    return [
        (table, key, value)
        for name, m in module.named_modules()
        for table in (m._parameters, m._buffers)
        for key, value in table.items()
        if f"{name}.{key}".lstrip(".") not in read
    ]


def _watches(module: torch.nn.Module, attributes: Iterable[tuple[str, str, Any]]) -> list[tuple[Any, Any, Any]]:
    """Everything of the module that the graph has baked in."""
    watches: list[tuple[Any, Any, Any]] = [(table, None, len(table)) for table in global_hook_tables()]
    for m in module.modules():
        watches.append((m.__dict__, "training", m.training))
        watches.extend((m._modules, name, child) for name, child in m._modules.items())
        tables: list[dict[Any, Any]] = [*hook_tables(m), m._modules, m._parameters, m._buffers]
        watches.extend((table, None, len(table)) for table in tables)
    for owner, path, value in attributes:
        holder, name = holder_of(module, owner, path)
        now = value.value if isinstance(value, Held) else value
        watches.append((holder.__dict__ if name in holder.__dict__ else holder, name, now))
    return watches

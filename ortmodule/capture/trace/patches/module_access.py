"""nn.Module's own attribute access tells what a forward looks at and sets on its modules, in which order; and its calls
which hooks they lead to.

Forward hooks run in the trace as the forward itself does, where the audit hears of them. Modules that torch's export
calls around the forward are none of the user's, and no hook is to hear of them.

torch.export copies the containers in every module's attributes, and puts the copies there in the end, so that `a is b`
would not hold any more after a capture. What a forward changes is found and taken back without that.

Not here: what is made of the accesses (trace/side_outputs.py), of changes (graph_transition/audit).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch.nn.modules.module as torch_module
from torch import nn
from torch.fx.experimental import proxy_tensor

from ..patching import Around, Patch
from ..tracing import TraceState

__all__ = ["PATCHES"]


@contextlib.contextmanager
def _restored(state: TraceState) -> Iterator[None]:
    try:
        yield
    finally:
        state.side_outputs.restore()


def _module_access(original: Any, state: TraceState) -> Any:
    side_outputs = state.side_outputs

    def getattribute(self: nn.Module, name: str) -> Any:
        side_outputs.record_read(self, name)
        return original(self, name)

    return getattribute


def _module_setting(original: Any, state: TraceState) -> Any:
    def setattribute(self: nn.Module, name: str, value: Any) -> None:
        original(self, name, value)
        if name in vars(self):
            state.side_outputs.record_write(self, name)

    return setattribute


def _module_call(original: Any, state: TraceState) -> Any:
    def call_module(tracer: Any, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if not state.forward_runs:
            return original(tracer, module, module.forward, args, kwargs)
        _refuse_hooks(module, state)
        if state.repeats is None:
            return original(tracer, module, forward, args, kwargs)
        run = functools.partial(original, tracer, module, forward, args, kwargs)
        return state.repeats.called(tracer, module, args, kwargs, run)

    return call_module


def _refuse_hooks(module: nn.Module, state: TraceState) -> None:
    """Of a hook in C, say, nothing is known; one that is always called is so when an operator raises in the engine."""
    everywhere = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
    tables = [t for t in (*everywhere, module._forward_pre_hooks, module._forward_hooks) if t]
    always = {*module._forward_hooks_always_called, *torch_module._global_forward_hooks_always_called}
    for number, hook in (entry for table in tables for entry in table.items()):
        if number in always or not (state.audit is None or state.audit.hears(hook)):
            text = getattr(hook, "__qualname__", type(hook).__name__)
            why = "is called even when it raises" if number in always else "runs in Python at each call"
            raise state.refused(f"a {type(module).__name__} has the forward hook {text}, which {why}")


def _no_snapshot(original: Any, state: TraceState) -> Any:
    return lambda module: contextlib.nullcontext()


PATCHES = (
    Around(_restored),
    Patch("torch.export._trace", "_detect_attribute_assignment", _no_snapshot),
    Patch(nn.Module, "__getattribute__", _module_access, only=lambda state: state.side_outputs.heard),
    Patch(nn.Module, "__setattr__", _module_setting),
    Patch(proxy_tensor._ModuleStackTracer, "call_module", _module_call),
)

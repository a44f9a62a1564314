"""Changes of the gradient mode that torch.export loses: under autocast, in torch's own Python, by `inference_mode`.

torch splits a trace where `no_grad` begins and ends, and closes and opens autocast again at each such place. Its pass
then knows a part without gradients by its first node, which is the opened autocast: the part is taken for an ordinary
one, and gradients flow through it. Here such a part is found behind the autocasts that it begins in, and they are moved
around it: autocast regions hold parts without gradients, as inline_regions (regions.py) expects. The pass for autocast
in turn has to look behind the name of the part that such a region holds.

Such changes are heard by a mode that stands before torch's functions. It is out of the way while it calls a function in
Python that has asked it, `gaussian_nll_loss` say: what changes a mode there puts it back for as long as that takes.

A trace has no word for inference mode. To gradients it is what `no_grad` is, which takes its place.
"""

from __future__ import annotations

import sys
import types
from operator import getitem
from pathlib import Path
from typing import Any

import torch
import torch._export.passes.replace_autocast_with_hop_pass as autocast_pass
import torch._export.passes.replace_set_grad_with_hop_pass as gradient_pass
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode

from ....errors import CaptureError
from ....naming import module_of
from ..patching import Patch
from ..state.scope_settings import GRADIENT_MODE
from ..tracing import TraceState

__all__ = ["PATCHES"]

# Modules of functions that the mode writes into the trace.
_NOTED = ("torch.amp.", "torch._functorch.")
# Where functions of torch's, and those that stand in their places while a trace is made, are written.
_KNOWN = (f"{Path(str(torch.__file__)).parent}/", f"{Path(__file__).parents[2]}/")
_TRACERS = ("torch._", "torch.fx", "torch.export", "torch.library", "torch.utils._", "torch.overrides", "ortmodule.")
_CHANGERS = ("torch.autograd.grad_mode", "torch.utils._contextlib", "contextlib", "ortmodule.capture")
# What `no_grad` and the like are made of.
_CHANGING = (torch.set_grad_enabled, torch.enable_grad, torch.autocast)
_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def _body(call: Node) -> GraphModule:
    return getattr(call.graph.owning_module, str(call.target))


def _opened(call: Node) -> tuple[list[Node], Node | None]:
    """The autocasts that a part begins in, outermost first, and the node behind them."""
    found: list[Node] = []
    for node in _body(call).graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        if node.target is not _ENTER:
            return found, node
        found.append(node)
    return found, None


def _is_part_with_a_mode(original: Any, state: TraceState) -> Any:
    def is_part(call: Node, omit_if_same_with_ambient: bool = False) -> Any:
        opened, mode = _opened(call) if call.op == "call_module" else ([], None)
        if not opened or mode is None or mode.target is not torch._C._set_grad_enabled:
            return original(call, omit_if_same_with_ambient)
        return not omit_if_same_with_ambient or mode.args[0] != torch.is_grad_enabled()

    return is_part


def _replaced_by_region(original: Any, state: TraceState) -> Any:
    def replace(call: Node) -> None:
        graph, body, (opened, _) = call.graph, _body(call).graph, _opened(call)
        closing = [n for n in body.nodes if n.target is _EXIT and n.args[0] in opened]
        moved: dict[Node, Node] = {}
        with graph.inserting_before(call):
            for node in opened:
                moved[node] = graph.node_copy(node)
        before = call.prev
        closed = [(node.args[0], dict(node.meta)) for node in closing]
        for node in (*closing, *reversed(opened)):
            body.erase_node(node)
        original(call)
        if not opened:
            return
        last = before.next
        while last.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            last = last.next
        region = last
        while last.next.target is getitem and last.next.args[0] is region:
            last = last.next
        with graph.inserting_after(last):
            for opener, meta in reversed(closed):  # each goes right behind `last`
                graph.call_function(_EXIT, (moved[opener],)).meta = meta

    return replace


def _is_autocast_part(original: Any, state: TraceState) -> Any:
    return lambda call: (call.op == "call_module" and bool(_opened(call)[0])) or original(call)


def _asks_itself(function: types.FunctionType) -> bool:
    """Whether it is a function outside of torch that has asked the modes itself, as torch's own do."""
    frame = sys._getframe(1)
    while frame.f_code is not torch.overrides.handle_torch_function.__code__:
        if frame.f_back is None or frame.f_code is function.__code__:
            return False
        frame = frame.f_back
    return frame.f_back is not None and frame.f_back.f_code is function.__code__


def _asked(original: Any, state: TraceState) -> Any:
    def answer(mode: Any, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, types.FunctionType) or module_of(func).startswith(_NOTED):
            return original(mode, func, types_, args, kwargs)
        if not func.__code__.co_filename.startswith(_KNOWN) and not _asks_itself(func):
            # It calls torch's own, which each mode of the trace would lead to it anew.
            raise CaptureError(f"a function of torch's was replaced by {func.__qualname__}, which calls it")
        state.away.append(mode)
        try:
            return original(mode, func, types_, args, kwargs)
        finally:
            state.away.pop()

    return answer


def _is_of_the_forward() -> bool:
    """Whether the mode is changed, by code itself or by a decorator of it, for the forward: torch's distributions do as
    well, what makes the trace does so for itself.
    """
    frame = sys._getframe(2)
    while str(frame.f_globals.get("__name__")).startswith(_CHANGERS) and frame.f_back is not None:
        frame = frame.f_back
    return not str(frame.f_globals.get("__name__")).startswith(_TRACERS)


def _heard(original: Any, state: TraceState) -> Any:
    def change(*args: Any, **kwargs: Any) -> Any:
        # Where the caller has turned gradients off the trace has no part without them, which a call with them needs.
        if state.forward_runs and not torch.is_grad_enabled() and _is_of_the_forward():
            state.asked.add(GRADIENT_MODE)
        if not state.away:
            return original(*args, **kwargs)
        with state.away[-1]:
            return original(*args, **kwargs)

    return change


def _entered(original: Any, state: TraceState) -> Any:
    def enter(context: Any) -> Any:
        if not context.mode:
            return original(context)
        context._ortmodule_no_grad = torch.no_grad()
        return context._ortmodule_no_grad.__enter__()

    return enter


def _left(original: Any, state: TraceState) -> Any:
    def leave(context: Any, *error: Any) -> Any:
        inner = vars(context).pop("_ortmodule_no_grad", None)
        return original(context, *error) if inner is None else inner.__exit__(*error)

    return leave


PATCHES = (
    Patch(gradient_pass, "_is_set_grad_enabled_sub_mod", _is_part_with_a_mode),
    Patch(gradient_pass, "_replace_with_hop", _replaced_by_region),
    Patch(autocast_pass, "_is_autocast_sub_mod", _is_autocast_part),
    Patch(PreDispatchTorchFunctionMode, "__torch_function__", _asked),
    *(Patch(owner, name, _heard) for owner in _CHANGING for name in ("__enter__", "__exit__")),
    *(Patch(torch.set_grad_enabled, name, _heard) for name in ("__init__", "__call__")),
    Patch(torch.inference_mode, "__enter__", _entered),
    Patch(torch.inference_mode, "__exit__", _left),
)

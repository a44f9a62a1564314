"""What a forward does with autograd itself, which a graph does not repeat.

Gradients that are read or set, `requires_grad` that is changed, leaves that are made, hooks on saved tensors and
anomaly detection inside are a `CaptureError`, and so are hooks on tensors, `retain_grad` and `autograd.grad`, which an
export drops in silence. A forward that turns gradients on (`torch.enable_grad`) asks for the gradient mode: its graph
holds for the mode it was made in, and where gradients were off it is a `CaptureError` as well.

Only what the user's code and torch.nn does counts; torch itself does all of it while it traces. Not here: questions
(questions/settings.py), regions without gradients (rewrite/regions.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch.autograd import anomaly_mode, graph

from .... import _C
from ....errors import CaptureError
from ...source_lines import current_source_line
from ..patching import FORWARD, Patch
from ..state.scope_settings import GRADIENT_MODE
from ..tracing import TraceState

__all__ = ["PATCHES", "refuse_changed_requires_grad", "refuse_left_mode"]

_READ = "the forward reads or sets a gradient (`.grad`), which a captured graph does not know"
_CHANGED = "the forward changes `requires_grad` of a tensor, which a captured graph does not repeat"
_MADE = "the forward makes a tensor that requires a gradient, which a captured graph does not repeat"
_SAVED = "the forward sets hooks on saved tensors, of which a captured graph has none"
_ANOMALY = "the forward turns anomaly detection on, which looks behind every operator"
_ENABLED = "the forward turns gradients on where its caller has turned them off"
_VERSION = "the forward reads the version of a tensor (`._version`), which a captured graph does not know"
_VIEW = "the forward asks what a tensor is a view of, which a captured graph does not know"
_SET = "the forward sets attributes of a tensor, which a captured graph does not repeat"
_LEFT = "the forward leaves the gradient mode changed, which a captured graph does not repeat"
_SET_BY_TORCH = frozenset({"_wrapped_number"})  # in C, on the tensor that it makes of a symbolic number
_TORCH_THAT_COUNTS = ("torch.nn.", "torch.optim")
# Frames between the user's code and here: of a context manager used as a decorator, and of what is replaced.
_BETWEEN = ("torch.utils._contextlib", "ortmodule.capture.trace.patch")


def refuse_changed_requires_grad(tensor: torch.Tensor, value: bool = True) -> None:
    """Raises CaptureError where the forward sets another `requires_grad` than the tensor has."""
    if torch._C.TensorBase.requires_grad.__get__(tensor) != value:  # type: ignore[attr-defined]
        _refuse(_CHANGED)


def refuse_left_mode(before: bool) -> None:
    """Raises CaptureError where the traced forward has ended in another gradient mode than `before`, and resets it."""
    if torch.is_grad_enabled() != before:
        torch.set_grad_enabled(before)
        raise CaptureError(_LEFT)


def _refuse(text: str) -> None:
    if _by_user():
        raise CaptureError(text, current_source_line())


def _by_user() -> bool:
    """Whether the code that did this is the user's or torch.nn's."""
    frame = sys._getframe(1)
    while (kind := _kind_of(frame.f_globals)) == 3 and frame.f_back is not None:
        frame = frame.f_back
    return kind == 1


def _kind_of(scope: dict[str, Any]) -> int:
    """Of code with these globals: 1 where it counts, 0 where it does not, 3 where it is what calls it that does."""
    name = str(scope.get("__name__") or "")
    if name.startswith(_BETWEEN):
        return 3
    return int(name.startswith(_TORCH_THAT_COUNTS) or not name.startswith(("torch.", "ortmodule.", "torch_")))


def _only_users(state: TraceState) -> _C.Callers:
    return _C.Callers(_kind_of)


def _before(action: Callable[..., None]) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            action(*args, **kwargs)
            return original(*args, **kwargs)

        return call

    return make


def _refusing_gradient(descriptor: Any, state: TraceState) -> Any:
    def read(self: torch.Tensor) -> Any:
        _refuse(_READ)
        return descriptor.__get__(self)

    def write(self: torch.Tensor, value: Any) -> None:
        _refuse(_READ)
        descriptor.__set__(self, value)

    return property(read, write)


def _refusing_read(text: str) -> Callable[[Any, TraceState], Any]:
    def make(descriptor: Any, state: TraceState) -> Any:
        def read(self: torch.Tensor) -> Any:
            _refuse(text)
            return descriptor.__get__(self)

        return property(read)

    return make


def _refusing_attributes(original: Any, state: TraceState) -> Any:
    def setattribute(self: torch.Tensor, name: str, value: Any) -> None:
        if name not in _SET_BY_TORCH and not hasattr(type(self), name):
            _refuse(_SET)
        original(self, name, value)

    return setattribute


def _refusing_leaves(original: Any, state: TraceState) -> Any:
    """At export's own handler, which every function of torch passes: a leaf that is made with `requires_grad=True`."""

    def override(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if kwargs and kwargs.get("requires_grad") is True:
            raise CaptureError(_MADE, current_source_line())
        return original(self, function, args, kwargs)

    return override


def _noting_mode(enabling: Callable[..., bool]) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        enabled = torch.is_grad_enabled()

        def call(*args: Any, **kwargs: Any) -> Any:
            if _by_user():
                state.asked.add(GRADIENT_MODE)
                if enabling(*args, **kwargs) and not enabled:
                    raise CaptureError(_ENABLED, current_source_line())
            return original(*args, **kwargs)

        return call

    return make


def _refusing(name: str) -> Callable[[Any, TraceState], Any]:
    def make(original: Any, state: TraceState) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            text = f"`{name}` is called inside forward; a captured graph cannot honour it"
            raise CaptureError(text, current_source_line(), differentiates=name in ("grad", "backward"))

        return refuse

    return make


_HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad", "backward")
PATCHES = (
    *(Patch(torch.Tensor, name, _refusing(name)) for name in _HOOKS),
    *(Patch(torch.autograd, name, _refusing(name)) for name in ("grad", "backward")),
    Patch(torch.Tensor, "grad", _refusing_gradient, only=_only_users),
    Patch(torch.Tensor, "_version", _refusing_read(_VERSION), only=_only_users),
    Patch(torch.Tensor, "_base", _refusing_read(_VIEW), only=_only_users),
    Patch(torch.Tensor, "_is_view", _before(lambda *_: _refuse(_VIEW)), only=_only_users),
    Patch(torch.Tensor, "__setattr__", _refusing_attributes, during=FORWARD, only=_only_users),
    Patch(torch.Tensor, "requires_grad_", _before(refuse_changed_requires_grad)),
    Patch(_NonStrictTorchFunctionHandler, "_override", _refusing_leaves, during=FORWARD),
    Patch(torch.enable_grad, "__enter__", _noting_mode(lambda _: True)),
    Patch(torch.set_grad_enabled, "__init__", _noting_mode(lambda _, mode: mode)),
    Patch(graph.saved_tensors_hooks, "__enter__", _before(lambda *_: _refuse(_SAVED))),
    Patch(anomaly_mode.set_detect_anomaly, "__init__", _before(lambda *_, **__: _refuse(_ANOMALY))),
    Patch(anomaly_mode.detect_anomaly, "__init__", _before(lambda *_, **__: _refuse(_ANOMALY))),
)

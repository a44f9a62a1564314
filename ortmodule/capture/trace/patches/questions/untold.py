"""Questions about a tensor that neither the call's signature nor a condition answers: where one is asked by the user's
code, the call runs in PyTorch.

A graph holds for tensors of the same sizes and types, whatever memory they lie in, whatever hangs on them for a
backward, and whatever numbers they hold; a text made of one tells all of that.
Not here: questions whose answers are conditions (settings.py), numbers that are made of values (inputs.py, values.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ..... import _C
from ...patching import FORWARD, Patch
from ...tracing import TraceState

__all__ = ["PATCHES"]

_METHODS = {
    "data_ptr": "where its memory lies",
    "untyped_storage": "for its memory",
    "storage": "for its memory",
    "is_shared": "whether processes share its memory",
    "is_set_to": "whether it is another's memory",
    "_is_view": "whether it is a view",
}
_PROPERTIES = {
    "_base": "what it is a view of",
    "_version": "how often it was written",
    "_backward_hooks": "for its hooks",
    "_post_accumulate_grad_hooks": "for its hooks",
    "retains_grad": "whether it retains its gradient",
    "output_nr": "for its place in the backward",
}
_TEXT = "for its text"
_OF_THE_TRACE = ("torch", "ortmodule", "copy", "contextlib")


def _counts(scope: dict[str, Any]) -> bool:
    """Whether code with these globals is none of torch's."""
    return str(scope.get("__name__")).partition(".")[0] not in _OF_THE_TRACE


def _only_others(state: TraceState) -> _C.Callers:
    return _C.Callers(_counts)


def _refused(state: TraceState, what: str) -> Exception:
    return state.refused(f"the forward asks a tensor {what}, which no graph can tell")


def _method(what: str) -> Any:
    def make(original: Any, state: TraceState) -> Any:
        def ask(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            raise _refused(state, what)

        return ask

    return make


def _property(what: str) -> Any:
    def make(descriptor: Any, state: TraceState) -> Any:
        def ask(self: torch.Tensor) -> Any:
            raise _refused(state, what)

        return property(ask)

    return make


ORDER = 2  # around what hears of values (values.py)
PATCHES = (
    *(Patch(torch.Tensor, name, _method(what), during=FORWARD, only=_only_others) for name, what in _METHODS.items()),
    *(
        Patch(torch.Tensor, name, _property(what), during=FORWARD, only=_only_others)
        for name, what in _PROPERTIES.items()
    ),
    *(
        Patch(kind, "__repr__", _method(_TEXT), during=FORWARD, only=_only_others)
        for kind in (FakeTensor, FunctionalTensor)
    ),
    Patch(torch.Tensor, "__format__", _method(_TEXT), during=FORWARD, only=_only_others),
)

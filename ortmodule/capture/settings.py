"""Which settings of a call a traced forward asks about: gradient mode, inference mode, requires_grad, strides.

A forward that asks (`if torch.is_grad_enabled()`, `if not x.is_contiguous()`) takes a branch that is baked into the
graph, and so the answer becomes a condition of that graph. Where nothing asks, one graph serves every answer. Only
questions of the user's code and of torch.nn count; torch asks itself all the time while it traces.

Not here: attributes of modules (reads.py), sizes (guards.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

__all__ = [
    "GRADIENT_MODE",
    "INFERENCE_MODE",
    "LEAVES",
    "REQUIRES_GRAD",
    "STRIDES",
    "answers",
    "recorded_settings",
    "replaced",
]

GRADIENT_MODE = "gradient mode"
INFERENCE_MODE = "inference mode"
REQUIRES_GRAD = "requires_grad"
STRIDES = "strides"
LEAVES = "is_leaf"

_MISSING = object()
# (owner, attribute, the settings on which what it says depends)
_FUNCTIONS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (torch, "is_grad_enabled", (GRADIENT_MODE,)),
    (torch, "is_inference_mode_enabled", (INFERENCE_MODE,)),
    (torch.Tensor, "is_inference", (INFERENCE_MODE,)),
    (torch.Tensor, "is_contiguous", (STRIDES,)),
    (torch.Tensor, "stride", (STRIDES,)),
)
# Whether an intermediate tensor requires a gradient depends on the mode as well.
_PROPERTIES = (("requires_grad", (REQUIRES_GRAD, GRADIENT_MODE)), ("is_leaf", (LEAVES, GRADIENT_MODE)))
_TORCH_THAT_COUNTS = ("torch.nn.modules.", "torch.nn.functional", "torch.nn.attention", "torch.nn.utils.")
_TORCH_THAT_DOES_NOT = ("torch.nn.modules.module",)
_OURS_THAT_COUNTS = "ortmodule.capture.checkpoints"  # it asks in place of a function that the forward calls


def answers(names: Iterable[str], leaves: Sequence[Any], module: torch.nn.Module) -> dict[str, Any]:
    """What the call with these flat leaves answers to each question of `names`."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found: dict[str, Any] = {}
    for name in names:
        if name == GRADIENT_MODE:
            found[name] = torch.is_grad_enabled()
        elif name == INFERENCE_MODE:
            found[name] = torch.is_inference_mode_enabled(), tuple(t.is_inference() for t in tensors)
        elif name == REQUIRES_GRAD:
            found[name] = tuple(t.requires_grad for t in (*tensors, *module.parameters()))
        elif name == LEAVES:
            found[name] = tuple(t.is_leaf for t in tensors)
        elif name == STRIDES:
            found[name] = tuple(map(_layout, tensors))
    return found


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor's strides as far as its sizes do not imply them."""
    strides = tensor.stride()
    order = sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))
    expected, dense = 1, True
    for axis in reversed(order):
        dense = dense and (strides[axis] == expected or tensor.shape[axis] == 1)
        expected *= tensor.shape[axis]
    contiguous = tensor.is_contiguous()
    return (contiguous, () if contiguous else tuple(order), None if dense else strides)


def _counts(depth: int) -> bool:
    """Whether the code `depth` frames above the caller is the user's or torch.nn's."""
    name = sys._getframe(depth + 1).f_globals.get("__name__") or ""
    if name.startswith(_TORCH_THAT_COUNTS):
        return not name.startswith(_TORCH_THAT_DOES_NOT)
    if name == _OURS_THAT_COUNTS:
        return True
    return not name.startswith(("torch.", "ortmodule.")) and name not in ("torch", "ortmodule", "contextlib", "copy")


@contextlib.contextmanager
def recorded_settings(asked: set[str], thread: int) -> Iterator[None]:
    """Within it, `asked` receives the settings that thread `thread` asks about."""
    with contextlib.ExitStack() as stack:
        for owner, name, settings in _FUNCTIONS:
            stack.enter_context(replaced(owner, name, _noting(getattr(owner, name), settings, asked, thread)))
        for name, settings in _PROPERTIES:
            descriptor: Any = getattr(torch._C.TensorBase, name)
            stack.enter_context(replaced(torch.Tensor, name, _noting_property(descriptor, settings, asked, thread)))
        yield


def _noting(original: Callable[..., Any], settings: tuple[str, ...], asked: set[str], thread: int) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and not asked.issuperset(settings) and _counts(1):
            asked.update(settings)
        return original(*args, **kwargs)

    return ask


def _noting_property(descriptor: Any, settings: tuple[str, ...], asked: set[str], thread: int) -> Any:
    def ask(self: torch.Tensor) -> Any:
        if threading.get_ident() == thread and not asked.issuperset(settings) and _counts(1):
            asked.update(settings)
        return descriptor.__get__(self)

    return property(ask, descriptor.__set__)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within it, `owner` has `value` as its attribute `name`."""
    raw = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if raw is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, raw)

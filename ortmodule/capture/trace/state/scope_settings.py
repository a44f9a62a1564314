"""Settings of a call that a forward can ask about: gradient mode, inference mode, requires_grad, strides, offsets.

A forward that asks (`if torch.is_grad_enabled()`, `if not x.is_contiguous()`) takes a branch that is baked into the
graph, and so the answer becomes a condition of that graph. Where nothing asks, one graph serves every answer.

Not here: who notes that a forward asks (patches/questions/settings.py), attributes of modules (graph_transition/audit),
sizes (guards.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ....errors import CaptureError
from ...module_tensors import named_tensors

__all__ = [
    "GRADIENT_MODE",
    "INFERENCE_MODE",
    "INFERENCE_TENSORS",
    "LEAVES",
    "OFFSETS",
    "REQUIRES_GRAD",
    "STRIDES",
    "answers",
    "refuse_inference_tensors",
]

GRADIENT_MODE = "gradient mode"
INFERENCE_MODE = "inference mode"
INFERENCE_TENSORS = "is_inference"
REQUIRES_GRAD = "requires_grad"
STRIDES = "strides"
LEAVES = "is_leaf"
OFFSETS = "storage_offset"


def answers(names: Iterable[str], leaves: Sequence[Any], module: torch.nn.Module) -> dict[str, Any]:
    """What the call with these flat leaves answers to each question of `names`."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    every = (*tensors, *(t for _, t in named_tensors(module)))
    found: dict[str, Any] = {}
    for name in names:
        if name == GRADIENT_MODE:
            found[name] = torch.is_grad_enabled()
        elif name == INFERENCE_MODE:
            found[name] = torch.is_inference_mode_enabled()
        elif name == INFERENCE_TENSORS:
            found[name] = torch.is_inference_mode_enabled(), tuple(t.is_inference() for t in every)
        elif name == REQUIRES_GRAD:
            # Where gradients are enabled within inference mode, what is computed wants none all the same.
            within = torch.is_inference_mode_enabled() and torch.is_grad_enabled()
            found[name] = within, tuple(t.requires_grad for t in every)
        elif name == LEAVES:
            found[name] = tuple(t.is_leaf for t in every)
        elif name == STRIDES:
            found[name] = tuple(map(_layout, every))
        elif name == OFFSETS:
            found[name] = tuple(t.storage_offset() for t in every)
    return found


def refuse_inference_tensors(asked: Iterable[str], leaves: Sequence[Any], module: torch.nn.Module) -> None:
    """Raises a CaptureError where a forward has asked whether a tensor was made in inference mode and some were, or
    are: none of a trace's own is.
    """
    mode, made = answers((INFERENCE_TENSORS,), leaves, module)[INFERENCE_TENSORS]
    if INFERENCE_TENSORS in asked and (mode or any(made)):
        raise CaptureError("the forward asks whether tensors are inference tensors, and some are")


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

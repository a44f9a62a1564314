"""clip_grad_norm_ that reads the gradients once, and writes them only where they are too large.

Not here: the sums (csrc/kernels/optimizer/gradient_norm.cpp, on devices norm.cu beside it).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ortmodule import _C
from ortmodule.optim.native import is_plain

_DEVICE_ORDERS = (1.0, 2.0, math.inf)
_TYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def is_summed(gradient: Tensor) -> bool:
    """Whether the engine takes the gradient: real, dense, on the CPU or a device with our kernels."""
    return (
        is_plain(gradient)
        and gradient.dtype in _TYPES
        and not gradient.is_neg()
        and (gradient.is_contiguous() or is_dense(gradient))
    )


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements lie in memory without a gap and without two in one place, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def total_norm(gradients: list[Tensor], order: float = 2.0) -> Tensor:
    """The norm over all gradients: 0-d, of their type where the engine computes it, else what torch gives."""
    if not _is_ours(gradients, order):
        return torch.nn.utils.get_total_norm(gradients, order)
    return _norm_of(gradients, order)


def _is_ours(gradients: list[Tensor], order: float) -> bool:
    """Whether the engine has the norm: of one device's gradients, there of three orders."""
    if not gradients or order == 0 or not all(map(is_summed, gradients)):
        return False
    devices = {gradient.device for gradient in gradients}
    return len(devices) == 1 and (gradients[0].is_cpu or order in _DEVICE_ORDERS)


def _norm_of(gradients: list[Tensor], order: float, max_norm: float | None = None) -> Tensor:
    """On a device with `max_norm` the gradients are scaled to it."""
    dtype = functools.reduce(torch.promote_types, {gradient.dtype for gradient in gradients})
    if not gradients[0].is_cpu:
        return _C.device_norm(gradients, order, max_norm).to(dtype)
    return torch.tensor(_C.gradient_norm(gradients, order), dtype=torch.float64).to(dtype)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """torch.nn.utils.clip_grad_norm_: scales all gradients in place so that their norm is at most `max_norm`.

    The factor is min(1, max_norm / (norm + 1e-6)). Sums are of doubles, in an order that does not depend on the number
    of threads. Gradients that are small enough are not written. On a device with our kernels (orders 1, 2 and infinity)
    it is two launches for 128 gradients of a type, and the host does not wait; sums are of floats over some thousand
    elements first. What the engine does not take (other devices, several of them, sparse or complex gradients,
    subclasses), and a given `foreach`, are torch's.

    Args:
        parameters: tensors with or without gradients, or one.
        max_norm: the largest norm.
        norm_type: the order p of the norm; "inf" or math.inf for the largest magnitude.
        error_if_nonfinite: raise where the norm is infinite or NaN, for which the host has to wait.
        foreach: torch's choice of its own code.

    Returns:
        The norm before, a 0-d tensor of the gradients' type.

    Raises:
        RuntimeError: `error_if_nonfinite`, and the norm is not finite; nothing is changed.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [p.grad for p in given if p.grad is not None]
    order = float(norm_type)
    if foreach is not None or not _is_ours(gradients, order):
        return torch.nn.utils.clip_grad_norm_(given, max_norm, norm_type, error_if_nonfinite, foreach)
    on_device = not gradients[0].is_cpu
    if on_device and not error_if_nonfinite:
        return _norm_of(gradients, order, float(max_norm))
    norm = _norm_of(gradients, order)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    if on_device:
        return _norm_of(gradients, order, float(max_norm))
    factor = float(max_norm) / (norm + 1e-6)
    if not factor >= 1.0:  # NaN too
        _C.scale_gradients(gradients, float(factor))
    return norm

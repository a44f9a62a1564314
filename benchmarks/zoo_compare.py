"""A training step of a tiny architecture, and whether ORTModule's equals eager's.

Not here: which architectures, and their processes (model_zoo.py).
"""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["compare", "compare_under_autocast", "in_double", "step"]

Batch = dict[str, torch.Tensor]


def step(module: torch.nn.Module, batch: Batch, autocast: torch.dtype | None = None) -> torch.Tensor:
    """One forward, under autocast of a dtype if one is given, and backward with fresh gradients; the loss."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        loss = module(**batch).loss
    loss.backward()
    return loss.detach()


def _unlike(eager: torch.nn.Module, ours: torch.nn.Module) -> str | None:
    """The first parameter that has a gradient in one of them only, or None."""
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if (p.grad is None) != (q.grad is None):
            return f"the gradient of {name} is None in {'eager' if p.grad is None else 'ORTModule'} only"
    return None


def compare(
    eager: torch.nn.Module, ours: torch.nn.Module, want: torch.Tensor, got: torch.Tensor, scale: float = 1.0
) -> str | None:
    """What differs between two steps, or None. A gradient may be off by 1e-4 of its own largest element.

    Args:
        eager, ours: after their steps.
        want, got: the losses of these.
        scale: of all tolerances; 1 is for float32.
    """
    if not torch.allclose(got, want, rtol=1e-4 * scale, atol=1e-6 * scale):
        return f"loss {got.item():.12g}, eager's {want.item():.12g}"
    unlike = _unlike(eager, ours)
    if unlike:
        return unlike
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if p.grad is None or q.grad is None:
            continue
        top = p.grad.abs().max().item() if p.grad.numel() else 0.0
        atol = (1e-5 + 1e-4 * top) * scale
        if not torch.allclose(q.grad, p.grad, rtol=1e-3 * scale, atol=atol, equal_nan=True):
            return f"the gradient of {name} is off by {(q.grad - p.grad).abs().max().item():.2g} of {top:.2g}"
    return None


def in_double(module: torch.nn.Module, state: dict[str, Any], batch: Batch) -> str:
    """Whether the step of a failed comparison agrees when both take it in float64: a fault stays, rounding does not."""
    from ortmodule import ORTModule

    try:
        eager = copy.deepcopy(module).double()
        eager.load_state_dict(state)
        ours = copy.deepcopy(eager)
        batch = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
        want = step(eager, batch)
        why = compare(eager, ours, want, step(ORTModule(ours), batch), scale=1e-6)
    except Exception as error:
        return f"not comparable in double: {type(error).__name__}"
    return f"in double: {why}" if why else "rounding: equal in double"


def compare_under_autocast(
    exact: torch.nn.Module,
    eager: torch.nn.Module,
    ours: torch.nn.Module,
    want: torch.Tensor,
    got: torch.Tensor,
    batch: Batch,
) -> str | None:
    """What differs between two steps under autocast, or None: each rounds in its own places, so that the step without
    autocast is the measure. Loss and gradients (all together, by their norm) may be twice as far from it as eager's.

    Args:
        exact: as the others were before their steps.
        eager, ours: after their steps.
        want, got: the losses of these.
        batch: of the steps.
    """
    unlike = _unlike(eager, ours)
    if unlike:
        return unlike
    loss = step(exact, batch)
    far, allowed = (_distance([one], [loss]) for one in (got, want))
    if not far <= 2 * allowed + 0.01:
        return f"loss {got.item():.6g}, eager's {want.item():.6g}, without autocast {loss.item():.6g}"
    truth = [p.grad for p in exact.parameters() if p.grad is not None]
    far, allowed = (_distance([p.grad for p in m.parameters() if p.grad is not None], truth) for m in (ours, eager))
    if not far <= 2 * allowed + 0.01:
        return f"the gradients are {far:.3g} of their norm from those without autocast, eager's {allowed:.3g}"
    return None


def _distance(values: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    squares = sum((v.double() - t.double()).square().sum() for v, t in zip(values, truth, strict=True))
    norm = sum(t.double().square().sum() for t in truth)
    return float(torch.as_tensor(squares / norm).sqrt())

"""A training step of a tiny architecture, and whether ORTModule's equals eager's.

Not here: which architectures, and their processes (model_zoo.py).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["Step", "compare", "compare_under_autocast", "in_double", "step"]

Batch = dict[str, torch.Tensor]


@dataclasses.dataclass
class Step:
    """What a step gave.

    Attributes:
        loss: a number.
        outputs: by its place in the result, every tensor that the forward returned.
    """

    loss: torch.Tensor
    outputs: dict[str, torch.Tensor]


def step(module: torch.nn.Module, batch: Batch, autocast: torch.dtype | None = None) -> Step:
    """One forward, under autocast of a dtype if one is given, and backward with fresh gradients."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        result = module(**batch)
    result.loss.backward()
    leaves, _ = pytree.tree_flatten_with_path(dict(result.items()))
    outputs = {pytree.keystr(path): leaf.detach() for path, leaf in leaves if isinstance(leaf, torch.Tensor)}
    return Step(result.loss.detach(), outputs)


def _unlike(eager: torch.nn.Module, ours: torch.nn.Module) -> str | None:
    """The first parameter that has a gradient in one of them only, or None."""
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if (p.grad is None) != (q.grad is None):
            return f"the gradient of {name} is None in {'eager' if p.grad is None else 'ORTModule'} only"
    return None


def compare(eager: torch.nn.Module, ours: torch.nn.Module, want: Step, got: Step, scale: float = 1.0) -> str | None:
    """What differs between two steps, or None: loss, outputs, buffers and gradients. One of these may be off by 1e-4
    of its own largest element.

    Args:
        eager, ours: after their steps.
        want, got: what these gave.
        scale: of all tolerances; 1 is for float32.
    """
    if not torch.allclose(got.loss, want.loss, rtol=1e-4 * scale, atol=1e-6 * scale):
        return f"loss {got.loss.item():.12g}, eager's {want.loss.item():.12g}"
    if got.outputs.keys() != want.outputs.keys():
        return f"outputs {', '.join(got.outputs)}, eager's {', '.join(want.outputs)}"
    unlike = _unlike(eager, ours)
    if unlike:
        return unlike
    for what, a, b in _pairs(eager, ours, want, got):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{what} is {b.dtype} of {tuple(b.shape)}, eager's {a.dtype} of {tuple(a.shape)}"
        if not (a.is_floating_point() or a.is_complex()):
            if not torch.equal(a, b):
                return f"{what} differs"
            continue
        finite = a[a.isfinite()]
        top = finite.abs().max().item() if finite.numel() else 0.0
        if not torch.allclose(b, a, rtol=1e-3 * scale, atol=(1e-5 + 1e-4 * top) * scale, equal_nan=True):
            return f"{what} is off by {(b - a).abs().max().item():.2g} of {top:.2g}"
    return None


def _pairs(
    eager: torch.nn.Module, ours: torch.nn.Module, want: Step, got: Step
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """What is compared: (what it is, eager's, ours)."""
    for name, tensor in want.outputs.items():
        yield f"output {name}", tensor, got.outputs[name]
    for (name, buffer), other in zip(eager.named_buffers(), ours.buffers(), strict=True):
        yield f"the buffer {name}", buffer, other
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if p.grad is not None and q.grad is not None:
            yield f"the gradient of {name}", p.grad, q.grad


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
    want: Step,
    got: Step,
    batch: Batch,
) -> str | None:
    """What differs between two steps under autocast, or None: each rounds in its own places, so that the step without
    autocast is the measure. Loss and gradients (all together, by their norm) may be twice as far from it as eager's.

    Args:
        exact: as the others were before their steps.
        eager, ours: after their steps.
        want, got: what these gave.
        batch: of the steps.
    """
    unlike = _unlike(eager, ours)
    if unlike:
        return unlike
    loss = step(exact, batch).loss
    far, allowed = (_distance([one], [loss]) for one in (got.loss, want.loss))
    if not far <= 2 * allowed + 0.01:
        return f"loss {got.loss.item():.6g}, eager's {want.loss.item():.6g}, without autocast {loss.item():.6g}"
    truth = [p.grad for p in exact.parameters() if p.grad is not None]
    far, allowed = (_distance([p.grad for p in m.parameters() if p.grad is not None], truth) for m in (ours, eager))
    if not far <= 2 * allowed + 0.01:
        return f"the gradients are {far:.3g} of their norm from those without autocast, eager's {allowed:.3g}"
    return None


def _distance(values: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    squares = sum((v.double() - t.double()).square().sum() for v, t in zip(values, truth, strict=True))
    norm = sum(t.double().square().sum() for t in truth)
    return float(torch.as_tensor(squares / norm).sqrt())

"""Optimizers on a device beside torch.optim's on the CPU: `python -m tests.cuda steps --match Adam`.

Each takes 200 steps on the simulated GPU; parameters must be within 1e-6 of torch's, and the last step is counted:
kernels, bytes that they move, and how often the host waits, which it never should. Not here: sizes, types and orders of
threads (step_cases.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule import optim

from ..optim.problems import parameters, set_gradients
from .cases import DEVICE
from .models import asked
from .simulated import simulator

Make = Callable[[list[nn.Parameter]], Any]
ON_DEVICE: dict[str, tuple[Make, Make]] = {
    "SGD": (
        lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
    ),
    "Adam": (lambda ps: optim.Adam(ps, lr=0.01, amsgrad=True), lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True)),
    "AdamW": (lambda ps: optim.AdamW(ps, lr=0.01), lambda ps: torch.optim.AdamW(ps, lr=0.01)),
    "AdamW scaled": (lambda ps: optim.AdamW(ps, lr=0.01), lambda ps: torch.optim.AdamW(ps, lr=0.01)),
    "LAMB": (lambda ps: optim.LAMB(ps, lr=0.01), lambda ps: optim.LAMB(ps, lr=0.01)),
}  # fmt: skip


def given_gradients(ours: list[nn.Parameter], theirs: list[nn.Parameter], scale: float) -> None:
    for p, q in zip(ours, theirs, strict=True):
        p.grad = (q.grad * scale).to(DEVICE) if q.grad is not None else None


def trained(name: str, steps: int) -> dict[str, Any]:
    """The worst difference, of the largest element, and what the last step asked of the device."""
    ours, theirs = parameters(), parameters()
    ours = [nn.Parameter(p.detach().to(DEVICE)) for p in ours]
    make, make_theirs = ON_DEVICE[name]
    optimizer, other = make(ours), make_theirs(theirs)
    scaled = name.endswith("scaled")
    for step in range(steps):
        set_gradients(theirs, step)
        skipped = scaled and step % 50 == 20
        given_gradients(ours, theirs, 8.0 if scaled else 1.0)
        if scaled:
            optimizer.grad_scale = torch.tensor(8.0, device=DEVICE)
            optimizer.found_inf = torch.tensor(float(skipped), device=DEVICE)
        with asked() as found:
            optimizer.step()
        if not skipped:
            other.step()
    worst = max(difference(p.detach().cpu(), q.detach()) for p, q in zip(ours, theirs, strict=True))
    return told(name, found, [f"parameters are off by {worst:.1e}"] * (worst > 1e-6)) | {"error": worst}


def difference(p: Tensor, q: Tensor) -> float:
    return float(((p - q).abs() / (q.abs() + q.abs().max())).max())


def clipped() -> dict[str, Any]:
    ps = parameters()
    set_gradients(ps, 0)
    ours = [nn.Parameter(p.detach().to(DEVICE)) for p in ps]
    given_gradients(ours, ps, 1.0)
    with asked() as found:
        norm = optim.clip_grad_norm_(ours, 1.0)
    wanted = nn.utils.clip_grad_norm_(ps, 1.0)
    worst = max(float((p.grad.cpu() - q.grad).abs().max()) for p, q in zip(ours, ps, strict=True))
    worst = max(worst, abs(float(norm.cpu()) / float(wanted) - 1))
    return told("clip_grad_norm_", found, [f"gradients are off by {worst:.1e}"] * (worst > 1e-6)) | {"error": worst}


def told(name: str, found: Any, failures: list[str]) -> dict[str, Any]:
    counts = found.told()
    failures = failures + [f"the host waits {counts['waits']} times"] * bool(counts["waits"])
    failures += [f"operators of ATen's run: {sorted(found.aten)}"] * bool(found.aten)
    kernels = {k: v["launches"] for k, v in found.own.items()}
    return {"optimizer": name, "failures": failures, "kernels": kernels, "bytes": counts["bytes"]}


def main(match: str, steps: int) -> int:
    simulator()
    wrong = 0
    for name in (n for n in (*ON_DEVICE, "clip_grad_norm_") if match in n):
        found = trained(name, steps) if name in ON_DEVICE else clipped()
        wrong += bool(found["failures"])
        print(json.dumps(found), flush=True)
    return int(wrong > 0)

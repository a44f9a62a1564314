"""Whole models trained through the CUDA kernels on the simulated GPU: `python -m tests.cuda models --match gpt2`.

Each family trains beside eager on the guarded device with plain gradient descent; losses must agree, and the launches
and bytes of our own kernels are told by name. Not here: kernels one by one (cases.py).
"""

from __future__ import annotations

import copy
import json
import time
import traceback
from typing import Any

import torch

import ortmodule

from .. import zoo
from .cases import DEVICE
from .simulated import counted, simulator

STEPS, RATE = 20, 0.05
TOLERANCE = 1e-3  # of the loss, after steps that add up differences of rounding


def step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    loss = zoo.loss_of(module(**inputs))
    loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= RATE * p.grad
    return float(loss.detach().cpu())


def train(name: str, steps: int = STEPS) -> dict[str, Any]:
    """Losses of `steps` steps beside eager's, and what our kernels did in the last one."""
    simulator()
    sample = zoo.build(name, 3, 16)
    inputs = {k: v.to(DEVICE) for k, v in sample.inputs.items()}
    theirs = sample.module.to(DEVICE)
    ours = ortmodule.ORTModule(copy.deepcopy(theirs), options=ortmodule.Options(dropout="torch"))
    worst = 0.0
    for number in range(steps):
        want = step(theirs, inputs)
        if number < steps - 1:
            got = step(ours, inputs)
        else:
            with counted() as found:
                got = step(ours, inputs)
        worst = max(worst, abs(got - want) / max(abs(want), 1e-3))
    report = ours.report()
    return {
        "model": name,
        "loss_error": worst,
        "launches": {k: v["launches"] for k, v in found.items()},
        "bytes": sum(v["loaded"] + v["stored"] for v in found.values()),
        "failures": [f"the loss is off by {worst:.1e}"] * (worst > TOLERANCE)
        + [f"it fell back to eager: {report.fallback_reason}"] * (report.fallback != "none"),
    }


def main(match: str) -> int:
    wrong = 0
    for name in (n for n in zoo.ALL if match in n):
        begin = time.perf_counter()
        try:
            found = train(name)
        except Exception:
            found = {"model": name, "failures": [traceback.format_exc()[-1500:]]}
        wrong += bool(found["failures"])
        print(json.dumps({**found, "seconds": round(time.perf_counter() - begin, 1)}), flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says benchmarks/gpu_units.py
    return int(wrong > 0)

"""Whole models trained through the CUDA kernels on the simulated GPU: `python -m tests.cuda models --match gpt2`.

Each family trains beside eager on the guarded device with plain gradient descent; losses must agree. Of the last step's
forward and backward are told, for both: launches, bytes that they move, and how often the host waits for the device,
which in a steady step it should never. An operator of ATen's is one launch that reads its operands and writes its
results (tests/device/guarded_device/counts.h); our kernels are counted access by access. The optimizer is the same for
both, and left out. Not here: kernels one by one (cases.py), times.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import json
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch

import ortmodule

from .. import zoo
from ..device.__main__ import library
from .cases import DEVICE
from .simulated import Counts, counted, simulator

STEPS, RATE = 20, 0.05
TOLERANCE = 1e-3  # of the loss, after steps that add up differences of rounding


@dataclasses.dataclass
class Asked:
    """What a step asked of the device: our kernels by name, operators of ATen's by name, waits of the host."""

    own: Counts = dataclasses.field(default_factory=dict)
    aten: Counts = dataclasses.field(default_factory=dict)
    waits: int = 0

    def told(self) -> dict[str, int]:
        own = sum(k["launches"] for k in self.own.values())
        moved = sum(k["loaded"] + k["stored"] for k in self.own.values())
        return {
            "launches": own + sum(k["launches"] for k in self.aten.values()),
            "own_launches": own,
            "bytes": moved + sum(k["bytes"] for k in self.aten.values()),
            "waits": self.waits,
        }


@contextlib.contextmanager
def asked() -> Iterator[Asked]:
    """What is asked of the device in here."""
    found = Asked()
    with counted() as own:
        library().guarded_reset_counts()
        yield found
        text = ctypes.create_string_buffer(library().guarded_counts(None, 0) + 64)
        library().guarded_counts(text, len(text))
    counts = json.loads(text.value)
    found.own, found.aten, found.waits = own, counts["operators"], counts["waits"]


def step(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[float, Asked]:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    with asked() as found:
        loss = zoo.loss_of(module(**inputs))
        loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= RATE * p.grad
    return float(loss.detach().cpu()), found


def train(name: str, steps: int) -> dict[str, Any]:
    """Losses of `steps` steps beside eager's, and what both asked of the device in the last one."""
    simulator()
    sample = zoo.build(name, 3, 16)
    inputs = {k: v.to(DEVICE) for k, v in sample.inputs.items()}
    theirs = sample.module.to(DEVICE)
    ours = ortmodule.ORTModule(copy.deepcopy(theirs), options=ortmodule.Options(dropout="torch"))
    worst = 0.0
    for _ in range(steps):
        want, by_eager = step(theirs, inputs)
        got, by_us = step(ours, inputs)
        worst = max(worst, abs(got - want) / max(abs(want), 1e-3))
    report = ours.report()
    eager, engine = by_eager.told(), by_us.told()
    return {
        "model": name,
        "loss_error": worst,
        "eager": eager,
        "engine": engine,
        "launches": round(engine["launches"] / eager["launches"], 3),
        "bytes": round(engine["bytes"] / eager["bytes"], 3),
        "kernels": {k: v["launches"] for k, v in by_us.own.items()},
        "operators": {k.removeprefix("aten::"): v["launches"] for k, v in by_us.aten.items()},
        "failures": [f"the loss is off by {worst:.1e}"] * (worst > TOLERANCE)
        + [f"it fell back to eager: {report.fallback_reason}"] * (report.fallback != "none")
        + [f"the host waits for the device {engine['waits']} times a step"] * bool(engine["waits"]),
    }


def main(match: str, steps: int) -> int:
    wrong = 0
    for name in (n for n in zoo.ALL if match in n):
        begin = time.perf_counter()
        try:
            found = train(name, steps)
        except Exception:
            found = {"model": name, "failures": [traceback.format_exc()[-1500:]]}
        wrong += bool(found["failures"])
        print(json.dumps({**found, "seconds": round(time.perf_counter() - begin, 1)}), flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says benchmarks/gpu_units.py
    return int(wrong > 0)

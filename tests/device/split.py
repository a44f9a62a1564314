"""Models that are split over the host, two devices and a provider of the tests: `python -m tests.device split`.

Each is trained beside eager on its home device; the copies that the devices counted are those of the plan. Then each
wait of the plans is left out in turn, and has to be missed. Not here: the devices (guarded_device/), the
provider (third_provider.cpp).
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn

from ortmodule import _C, Options, ORTModule, debug

from .__main__ import ROOT, library

DEVICE = "guarded:0"
HOMES = (DEVICE, "cpu")
# Many times what a wait that nothing misses takes on a busy machine.
SECONDS_A_WAIT = 150
# By model: what the third provider runs, what the first device leaves to the host.
Split = tuple[str, str]


class Block(nn.Module):
    """A transformer's layer on sequences of vectors."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        q, k, v = self.mixed(self.first(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width))
        return (x + self.down(torch.tanh(self.up(self.second(x))))).square().mean()


class Perceptron(nn.Module):
    """Linear layers, whose gradients all leave at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x), x[:, 0].abs().long().clamp(max=3))


class Branches(nn.Module):
    """Values that several devices read, of which some are copied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.tanh(self.a(x)), torch.sigmoid(self.b(x))
        c = torch.exp(a * b) * self.scale
        return ((c + a).softmax(-1) * (c - b)).sum(-1).square().mean() + c.flatten()[: x.shape[0]].sum()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], Split]] = {
    "block": (Block, lambda: torch.randn(2, 5, 16), ("MatMul,Add,Linear", "LayerNormalization,LayerNormalizationGrad")),
    "perceptron": (Perceptron, lambda: torch.randn(6, 8), ("Linear,Gelu", "SoftmaxCrossEntropyLoss,TanhGrad")),
    "branches": (Branches, lambda: torch.randn(4, 12), ("Linear,Exp,Mul", "Sigmoid,Softmax")),
}


def load_provider() -> ctypes.CDLL:
    return ctypes.CDLL(str(ROOT / "build" / "libthird_provider.so"))


def made(name: str, home: str) -> tuple[nn.Module, ORTModule, torch.Tensor]:
    """The model for eager, one for the engine, and a batch."""
    make, batch, (third, left) = MODELS[name]
    torch.manual_seed(0)
    model = make()
    x = batch()
    eager = copy.deepcopy(model).to(home)
    providers = (("third", {"operators": third}), (DEVICE, {"except": left}), "cpu")
    wrapped = ORTModule(model.to(home), options=Options(providers=providers, fallback="error"))
    return eager, wrapped, x.to(home)


def step(model: nn.Module, x: torch.Tensor, factor: float = 1.0) -> dict[str, torch.Tensor]:
    """The loss and every gradient, on the host, with batch and parameters times `factor`. They are written by what was
    queued just before, and spoilt by what is queued just behind the step.
    """
    model.zero_grad()
    kept = [(p, p.detach().clone()) for p in model.parameters()]
    given = torch.full_like(x, torch.nan)
    with torch.no_grad():
        for p, value in [*kept, (given, x)]:
            p.fill_(torch.nan)
            p.copy_(value).mul_(factor)
    loss = model(given.requires_grad_())
    read = loss.detach().clone()
    loss.backward()
    with torch.no_grad():
        given.fill_(torch.nan)
        for p, value in kept:
            p.fill_(torch.nan)
            p.copy_(value)
    named = {name.removeprefix("module."): p for name, p in model.named_parameters()}
    found = {"loss": read, "x": given.grad, **{name: p.grad for name, p in named.items()}}
    return {name: value.cpu() for name, value in found.items() if value is not None}


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> str:
    if a.keys() != b.keys():
        return f"{sorted(a)} beside {sorted(b)}"
    for name, value in a.items():
        if not torch.allclose(value, b[name], rtol=1e-4, atol=1e-5):
            return f"{name} differs by {(value - b[name]).abs().max()}"
    return ""


def transfers(plan: debug.StepPlan) -> list[int]:
    """How many copies a step makes by its plan: to a device, to the host, between devices."""
    counts = [0, 0, 0]
    for half in plan.halves:
        for one in half["steps"]:
            if one["kind"] == "Transfer":
                to_host = one["op"].endswith("MemcpyToHost")
                from_host = half["streams"][one["stream"]].endswith("transfers")
                counts[1 if to_host else 0 if from_host else 2] += 1
    return counts


def train(name: str, home: str) -> dict[str, Any]:
    """Three steps beside eager's; what differs, and the copies counted beside the plan's."""
    knobs, third = library(), load_provider()
    third.third_calls.restype = ctypes.c_int64
    eager, wrapped, x = made(name, home)
    failures, counted, planned = [], [], []
    before = third.third_calls()
    for number in range(3):
        wanted, got = step(eager, x), step(wrapped, x)
        if text := difference(wanted, got):
            failures.append(f"step {number}: {text}")
        if number == 0:  # captured and compiled by now
            planned = transfers(debug.plan(wrapped, x.detach().requires_grad_()))
        for model in (eager, wrapped):
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    knobs.guarded_synchronize()
    knobs.guarded_reset_copies()
    run = x.detach().requires_grad_()
    wrapped(run).backward()
    knobs.guarded_synchronize()
    counted = [knobs.guarded_copies(kind) for kind in range(3)]
    if counted != planned:
        failures.append(f"copies {counted}, planned {planned}")
    return {"failures": failures, "copies": counted, "third": third.third_calls() - before}


def waits_of(wrapped: ORTModule, x: torch.Tensor) -> list[tuple[str, int]]:
    """(half, number) of every wait in the plans of a step."""
    found = []
    for half in debug.plan(wrapped, x.detach().requires_grad_()).halves:
        count = sum(len(one["waits_for"]) for one in half["steps"]) + len(half["waits_at_end"])
        found += [(half["name"], number) for number in range(count)]
    return found


def miss_waits(name: str, home: str, first: int) -> None:
    """Leaves each wait from `first` on out in turn, with one stream after the other slowed, and prints whether a step
    has other numbers or fails. It may end the process, where a copy writes what the host has let go of, or hold it in
    the allocator so spoilt: then the alarm ends it.
    """
    knobs = library()
    _, wrapped, x = made(name, home)
    right = step(wrapped, x)
    for index, (half, number) in list(enumerate(waits_of(wrapped, x)))[first:]:
        told = {"model": name, "home": home, "index": index, "wait": f"{half} {number}"}
        print(json.dumps(told), flush=True)
        signal.alarm(SECONDS_A_WAIT)
        _C.leave_out_wait(half, number)
        # Long ones for what a busy machine is slow enough to hide.
        seen = any(other(knobs, wrapped, x, right, s, delay) for delay in (3000, 12_000) for s in range(10))
        _C.leave_out_wait("", -1)
        signal.alarm(0)
        print(json.dumps({**told, "seen": seen}), flush=True)


def other(
    knobs: ctypes.CDLL, wrapped: nn.Module, x: torch.Tensor, right: dict[str, torch.Tensor], slow: int, delay: int
) -> bool:
    """Whether a step has other numbers, or fails, where each job of stream `slow` first sleeps `delay` microseconds."""
    knobs.guarded_set_delay(-1, -1, 0, 0)
    with contextlib.suppress(RuntimeError):
        step(wrapped, x, 7.0)  # what lies in memory is not what is right
    knobs.guarded_synchronize()
    knobs.guarded_set_delay(slow // 5, slow % 5, delay, 1000)
    try:
        return bool(difference(right, step(wrapped, x)))
    except RuntimeError:
        return True
    finally:
        knobs.guarded_set_delay(-1, -1, 0, 0)


def main() -> int:
    """Without arguments all models; with `waits`, a model, a home and a number, the waits of that one from there on."""
    load_provider()
    if sys.argv[2:3] == ["waits"]:
        miss_waits(sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return 0
    for name in MODELS:
        for home in HOMES:
            print(json.dumps({"model": name, "home": home, **train(name, home)}), flush=True)
    return 0

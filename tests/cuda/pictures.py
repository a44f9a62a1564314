"""Convolutional nets on the simulated GPU, beside eager on the host: `python -m tests.cuda pictures --match unet`.

Values lie with channels last between convolutions, and batch norm is in parts; results and gradients have to be those
of eager, in its order of elements. Not here: residual networks (models.py).
"""

from __future__ import annotations

import copy
import json
import time
import traceback
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import ortmodule

from .cases import DEVICE
from .simulated import counted, simulator

TOLERANCE = 1e-3  # of the largest element: batch norm of few rows makes much of a rounding


class Excited(nn.Module):
    """Depthwise convolution, ReLU6, and a factor for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.factor = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), nn.SiLU(),
                                    nn.Conv2d(4, channels, 1), nn.Sigmoid())  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.first(self.deep(x)))
        return x + self.second(self.point(y * self.factor(y)))


class UNet(nn.Module):
    """Pictures of one channel; group norm, means, a transposed convolution and parts side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.groups, self.up = nn.GroupNorm(4, 16), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(9, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.groups(F.relu(self.norm(self.down(x))))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="nearest") + y
        return self.out(torch.cat([self.up(y), x], 1))


class Heads(nn.Module):
    """Views of one value, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.point = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.linear, self.rows = nn.Linear(8 * 36, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.norm(self.conv(x)))
        return self.point(y).flatten(2), self.rows(self.linear(F.max_pool2d(y, 2).flatten(1))), y


class Frozen(nn.Module):
    """Statistics that stay, beside a batch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.norm, self.layer = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.LayerNorm([8, 10, 10])

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.frozen(self.first(x)))
        return self.layer(F.leaky_relu(self.norm(self.second(y))))


class Lines(nn.Module):
    """One spatial axis, and three."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.first = nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)
        self.cube, self.second = nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(self.line(x))).view(len(x), 1, 4, 4, -1)
        return F.relu(self.second(self.cube(y)))


def excited() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), Excited(16), Excited(16))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "excited": (excited, (4, 3, 14, 14)),
    "excited, channels last": (excited, (4, 3, 14, 14)),
    "unet": (UNet, (2, 1, 16, 16)),
    "heads": (Heads, (4, 3, 12, 12)),
    "frozen": (Frozen, (2, 3, 12, 12)),
    "lines": (Lines, (3, 3, 10)),
}


def step(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Results, gradients and buffers."""
    x = x.detach().requires_grad_()
    made = module(x)
    results = made if isinstance(made, tuple) else (made,)
    module.zero_grad()
    sum(y.float().sin().mean() for y in results).backward()  # type: ignore[union-attr]
    found = {f"result {i}": y.detach() for i, y in enumerate(results)}
    found |= {f"gradient of {n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    found |= {f"buffer {n}": b for n, b in module.named_buffers()}
    return {**found, "gradient of x": x.grad if x.grad is not None else x}


def check(name: str) -> list[str]:
    make, shape = NETS[name]
    torch.manual_seed(len(name))
    module, x = make(), torch.randn(shape)
    if "channels last" in name:
        module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    ours = ortmodule.ORTModule(copy.deepcopy(module).to(DEVICE))
    failures = []
    for _ in range(2):
        wanted = step(module, x)
        with counted() as kernels:
            got = step(ours, x.to(DEVICE))
        for part, want in wanted.items():
            have = got[part]
            error = float((have.cpu().double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-3))
            if error > TOLERANCE:
                failures.append(f"{part} is off by {error:.1e}")
            if have.stride() != want.stride() and not part.endswith(" of x"):
                failures.append(f"{part} has strides {have.stride()}, in eager {want.stride()}")
    if kernels.get("copy_list", {}).get("launches") != 1:
        failures.append("running statistics are not written back in one launch")
    report = ours.report()
    return failures + [f"it fell back to eager: {report.fallback_reason}"] * (report.fallback != "none")


def main(match: str) -> int:
    simulator()
    wrong = 0
    for name in (n for n in NETS if match in n):
        try:
            failures = check(name)
        except Exception:
            failures = [traceback.format_exc()[-1500:]]
        wrong += bool(failures)
        print(json.dumps({"net": name, "failures": failures}), flush=True)
    time.sleep(0.5)  # for autograd's thread of the device; why, says benchmarks/gpu_units.py
    return int(wrong > 0)

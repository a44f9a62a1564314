"""The step on paper: what is counted for a tiny model is what a hand counts, and times follow from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from ortmodule.testing import OpTester

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS, INNER, WIDTH = 32, 64, 48  # x[ROWS, INNER], weight[WIDTH, INNER]
X, W, Y = ROWS * INNER, WIDTH * INNER, ROWS * WIDTH  # elements
PRODUCT = 2.0 * ROWS * INNER * WIDTH
STATISTICS = 2 * 4 * ROWS  # mean and reciprocal deviation of each row


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(INNER, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.gelu(self.up(x)).float()).square().sum()


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_paper.eager
    import gpu_paper.machines
    import gpu_paper.planned

    yield gpu_paper


def counted(kernels: list[Any], half: str) -> list[tuple[str, int, float, float]]:
    return [(k.name, k.launches, k.bytes, k.flops) for k in kernels if k.half == half and k.launches]


def test_eagers_kernels_are_those_that_a_hand_counts(paper: Any) -> None:
    kernels = paper.eager.eager_kernels(Tiny, (torch.zeros(ROWS, INNER),))
    forward = counted(kernels, "forward")
    assert sorted(forward[:3]) == sorted(("_to_copy", 1, 6.0 * n, 0.0) for n in (X, W, WIDTH))  # 4 bytes in, 2 out
    assert forward[3:] == [
        ("addmm", 1, 2.0 * (X + W + WIDTH + Y), PRODUCT),
        ("gelu", 1, 4.0 * Y, 0.0),
        ("_to_copy", 1, 6.0 * Y, 0.0),
        ("native_layer_norm", 1, 8.0 * Y + 8 * WIDTH + STATISTICS, 0.0),
        ("pow", 1, 8.0 * Y, 0.0),
        ("sum", 1, 4.0 * Y + 4, 0.0),
    ]
    backward = dict((name, (launches, size, flops)) for name, launches, size, flops in counted(kernels, "backward"))
    # dy and x once for dx and once more for weight and bias, which are read and whose gradients are written.
    assert backward["native_layer_norm_backward"] == (2, 20.0 * Y + 16 * WIDTH + STATISTICS, 0.0)
    assert backward["mm"] == (1, 2.0 * (X + W + Y), PRODUCT)  # x has no gradient
    assert backward["sum"] == (1, 2.0 * (Y + WIDTH), 0.0)
    assert backward["gelu_backward"] == (1, 6.0 * Y, 0.0)


def test_the_plans_kernels_are_those_that_a_hand_counts(paper: Any) -> None:
    planned = paper.planned
    batch = (torch.zeros(ROWS, INNER),)
    halves = planned.plan_of(Tiny().train(), batch, planned.Options(memory_budget="all"), torch.zeros(1))
    kernels = planned.planned_kernels(halves, None, causal=False)
    assert counted(kernels, "forward") == [
        *[("Cast", 1, 6.0 * n, 0.0) for n in (X, W, WIDTH)],
        ("Linear", 1, 2.0 * (X + W + WIDTH + Y), PRODUCT),
        ("Gelu", 1, 4.0 * Y, 0.0),
        ("Cast", 1, 6.0 * Y, 0.0),
        ("LayerNormalization", 1, 8.0 * Y + 8 * WIDTH + STATISTICS, 0.0),
        ("Mul", 1, 8.0 * Y, 0.0),
        ("ReduceSum", 1, 4.0 * Y + 4, 0.0),
    ]
    backward = counted(kernels, "backward")
    assert ("FusedKernel", 1, 8.0 * Y + 4, 0.0) in backward  # 2 y dy; dy is one number
    assert ("LinearGrad", 1, 2.0 * (X + W + Y), PRODUCT) in backward
    assert ("LinearGrad", 1, 2.0 * (Y + WIDTH), 0.0) in backward
    merged = counted(planned.merged_kernels(halves, causal=False), "forward")
    # Of the joined kernel: gelu's operand, the norm's weight and bias; the norm's operand, result and statistics, which
    # backward reads; the sum.
    assert merged[-1][1:3] == (1, 2.0 * Y + 8 * WIDTH + 4 * Y + 4 * Y + STATISTICS + 4)
    assert len(merged) == 5


def test_dropout_that_calls_aten_stores_a_mask(paper: Any) -> None:
    module, batch = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5)).train(), (torch.zeros(4, 8),)
    halves = paper.planned.plan_of(module, batch, paper.planned.Options(fusion=False), torch.zeros(1))
    ways = [paper.planned.planned_kernels(halves, ours, causal=False) for ours in (frozenset(), None)]
    found = [[k for k in kernels if k.name == "PhiloxDropout" and k.half == "forward"] for kernels in ways]
    (aten,), (own,) = found
    assert (aten.launches, aten.bytes) == (3, 64.0 * (1 + 5 + 4))
    assert (own.launches, own.bytes) == (1, 64.0 * 4 + 16 + 8)  # and the run's random state, the ratio


def test_the_device_waits_for_a_host_that_is_late(paper: Any) -> None:
    machines = paper.machines
    gpu, shares = machines.GPUS["h200"], machines.Efficiencies(memory=1.0, product=0.5)
    host = machines.HostCosts(launch=2.0, call=3.0, view=1.0)
    copy = machines.Kernel("copy", "forward", 1, 4.8e12 * 20e-6)
    product = machines.Kernel("mm", "forward", 1, 8.0, 989e12 * 50e-6, "product")
    assert machines.device_us(copy, gpu, shares) == pytest.approx(20)
    assert machines.device_us(product, gpu, shares) == pytest.approx(100)
    found = machines.predict([copy, product], gpu, host, shares)
    assert (found.step, found.device, found.launch_bound) == (pytest.approx(0.125), pytest.approx(0.12), False)
    small = machines.Kernel("copy", "forward", 1, 8.0)
    found = machines.predict([small] * 10, gpu, host, shares)  # 5 us of the host each, 2 of the device
    assert found.step == pytest.approx((10 * 5 + 2) / 1e3)
    assert found.launch_bound


def test_rows_that_labels_leave_are_as_many_as_the_kernel_lists(paper: Any) -> None:
    labels = torch.full((64,), -100)
    labels[::7] = 1
    tester = OpTester("LabelRows", domain="ai.ortmodule").add_attribute("ignore_index", -100).add_input(labels)
    (rows,) = tester.add_output(None).run()
    assert paper.planned.kept_rows(64, int((labels >= 0).sum())) == rows.numel() < 64


def test_the_command_writes_what_it_assumes(tmp_path: Path) -> None:
    out = tmp_path / "paper.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_model.py"), "--models", "resnet50", "--gpus", "h200,l4"]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["measured"] is False
    assert result["inputs"]["gpus"]["l4"]["bandwidth"] == 0.3e12
    ways = {row["way"]: row for row in result["rows"] if row["gpu"] == "h200"}
    assert set(ways) == {"eager", "aten", "today", "own", "kept", "merged", "products"}
    assert ways["products"]["step"] < ways["merged"]["step"] <= ways["kept"]["step"]
    assert "assumed" in done.stdout

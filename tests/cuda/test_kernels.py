"""The CUDA kernels compute what PyTorch does, on the simulated GPU, and whole models train through them.

In processes of their own: the device that stands for a GPU is torch's for good. Not here: that nvcc compiles them
(test_sources.py), the simulator by itself (tests/cpp/cuda).
"""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ..device.__main__ import ROOT
from .needs import needs_built

pytestmark = needs_built(*(ROOT / "build" / f"lib{name}_cuda.so" for name in ("simulated", "sanitized")))


def run(*arguments: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.cuda", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode in (0, 1), f"{done.stdout[-300:]} {done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("match", "least"),
    [
        ("Norm", 40),
        ("oftmax ", 40),
        ("CrossEntropy", 20),
        ("lu ", 30),
        ("Rotary", 12),
        ("Reduce", 25),
        ("Tanh", 3),
        ("Sigmoid", 3),
        ("Dropout", 10),
        ("Embedding", 10),
        ("Gather", 8),
        ("CastAll", 16),
        ("AddAll", 4),
        ("ConcatSum", 16),
        ("GroupedMatMul", 9),
        (" step ", 40),
        ("clip_grad_norm_", 20),
    ],
)
def test_a_kernel_computes_what_pytorch_does_in_any_order_of_threads(match: str, least: int) -> None:
    found = run("kernels", "--match", match)
    assert len(found) >= least
    assert not {one["case"]: one["failures"] for one in found if one["failures"]}


def test_kernels_are_clean_under_sanitizers() -> None:
    """A part of the cases; `make asan` runs all of them."""
    found = run("sanitized", "--every", "8")
    assert len(found) > 20
    assert not {one["case"]: one["failures"] for one in found if one["failures"]}


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("mlp", {"fused_*", "cross_entropy", "cross_entropy_gradient"}),
        ("gpt2", {"fused_*", "fused_*_total", "gather_rows", "sum_rows"}),
        ("mixtral", {"fused_*", "grouped_matmul"}),
    ],
)
def test_a_model_trains_through_our_kernels_and_its_host_never_waits(name: str, kernels: set[str]) -> None:
    """All families: `python -m tests.cuda models`, which fails where a steady step waits."""
    (found,) = run("models", "--match", name, "--steps", "4")
    assert not found["failures"]
    assert not {pattern for pattern in kernels if not fnmatch.filter(found["kernels"], pattern)}


def test_convolutional_nets_give_eagers_results_in_eagers_order_of_elements() -> None:
    found = run("pictures")
    assert len(found) >= 6
    assert not {one["net"]: one["failures"] for one in found if one["failures"]}


def test_attention_behind_a_rotation_leads_to_no_copy() -> None:
    """Two copies are casts between the vocabulary's scores and their loss, which is in float32."""
    (found,) = run("layouts", "--match", "llama")
    assert not found["failures"]
    assert found["copies"] == 2


def test_200_steps_on_a_device_equal_torchs_and_the_host_never_waits() -> None:
    found = {one["optimizer"]: one for one in run("steps")}
    assert not {name: one["failures"] for name, one in found.items() if one["failures"]}
    assert found["AdamW"]["kernels"] == {"adam_step": 1}
    assert found["AdamW scaled"]["kernels"] == {"advance_steps": 1, "adam_step": 1}
    assert found["clip_grad_norm_"]["kernels"] == {"gradient_parts": 1, "scale_gradients": 1}

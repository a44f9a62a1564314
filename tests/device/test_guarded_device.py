"""Operator samples, model families and what else a step needs, on a device whose memory the host cannot touch.

What a GPU would refuse is found here without one: kernels that read device memory from the host, tensors of both
devices in one operator, gradients that autograd's own device thread computes. Numbers are compared with eager's on the
same device. Not here: the device by itself (test_streams.py); a GPU's own kernels, speed, bfloat16
(benchmarks/gpu_check.py, on a GPU).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import LIBRARY, ROOT

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="build/libguarded_device.so is built by `make test`")


@pytest.mark.parametrize(("part", "least"), [("operators", 300), ("models", 13), ("features", 10)])
def test_everything_runs_without_touching_device_memory(part: str, least: int, tmp_path: Path) -> None:
    out = tmp_path / "units.jsonl"
    command = [sys.executable, "-m", "tests.device", part, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    units = [line for line in lines if "index" in line]
    begun = [line["unit"] for line in lines if "begins" in line]
    assert done.returncode == 0, f"the process ended with {done.returncode} in {begun[-1:]}: {done.stderr[-2000:]}"
    assert len(units) >= least
    assert not {unit["unit"]: unit["failures"] for unit in units if unit["failures"]}

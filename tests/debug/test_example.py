"""`examples/find_corruption.py` as a user runs it: one flipped bit is found by its step and its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "find_corruption.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run side by side
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, env=alone, check=False
    )


@pytest.mark.parametrize(("weight", "bit"), [("2.weight", 12), ("0.bias", 0), ("4.weight", 30)])
def test_a_bit_that_flips_at_step_50_is_found(weight: str, bit: int, tmp_path: Path) -> None:
    done = run("--weight", weight, "--bit", str(bit), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"step 50, forward: weight '{weight}'" in done.stdout
    assert "after 50 steps that agree" in done.stdout and "something else wrote the weight" in done.stdout
    command = [
        sys.executable,
        "-m",
        "ortmodule.debug",
        "diff",
        str(tmp_path / "out" / "a"),
        str(tmp_path / "out" / "b"),
    ]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and again.stdout.strip() in done.stdout


def test_wrong_arguments_are_said() -> None:
    assert "the weights are 0.weight" in run("--weight", "3.weight").stderr
    assert "none of 10 steps" in run("--steps", "10").stderr
